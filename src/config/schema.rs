//! The JSON Schema of a type that is read from TOML. It depends on none of its keys.

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;

/// The JSON Schema of the configuration: sections inline, no references, and no value that TOML
/// cannot express.
pub(crate) fn json_schema_of<T: JsonSchema>(title: &str) -> serde_json::Value {
    let mut settings = SchemaSettings::draft07().for_deserialize();
    // TOML editors (taplo) support draft 4 to 7, and follow references badly.
    settings.inline_subschemas = true;
    let schema = settings.into_generator().into_root_schema_for::<T>();
    let mut schema = schema.to_value();
    remove_null(&mut schema);
    schema["title"] = title.into();
    schema
}

/// An optional value is absent in TOML, never null.
fn remove_null(schema: &mut serde_json::Value) {
    use serde_json::Value;
    match schema {
        Value::Array(values) => values.iter_mut().for_each(remove_null),
        Value::Object(map) => {
            if let Some(Value::Array(types)) = map.get_mut("type") {
                types.retain(|it| it != "null");
                if let [only] = types.as_slice() {
                    let only = only.clone();
                    map.insert("type".to_owned(), only);
                }
            }
            if map.get("default").is_some_and(Value::is_null) {
                map.remove("default");
            }
            if let Some(Value::Array(ways)) = map.get_mut("anyOf") {
                ways.retain(|it| it["type"] != "null");
                if let [only] = ways.as_slice()
                    && let Value::Object(only) = only.clone()
                {
                    map.remove("anyOf");
                    for (key, value) in only {
                        map.entry(key).or_insert(value);
                    }
                }
            }
            map.values_mut().for_each(remove_null);
        }
        _ => {}
    }
}
