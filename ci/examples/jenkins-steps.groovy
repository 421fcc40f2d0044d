// A stand-in for Jenkins' part of a declarative pipeline, so that Groovy parses the Jenkinsfile
// next to it and runs its steps. It is not Jenkins: options, triggers and the agent are read and
// have no effect here.
//
// Ends with the code that the pipeline names in error(), or 0.

class Failed extends RuntimeException {
    Failed(String why) { super(why) }
}

abstract class Steps extends Script {
    static String kept = null

    void inside(Closure body) {
        body.delegate = this
        body.resolveStrategy = Closure.DELEGATE_FIRST
        body()
    }

    void pipeline(Closure body) { inside(body) }
    void agent(Closure body) { inside(body) }
    void label(String name) { println "agent: ${name}" }
    void triggers(Closure body) { inside(body) }
    void cron(String when) { println "cron: ${when}" }
    void options(Closure body) { inside(body) }
    void disableConcurrentBuilds() { println 'options: one at a time' }
    void timeout(Map limit) { println "options: ${limit.time} ${limit.unit}" }
    Map logRotator(Map kept) { kept }
    void buildDiscarder(Map kept) { println "options: keep ${kept.numToKeepStr}" }

    // Assignments in here become variables of the steps in Jenkins; the test names its own
    // configuration, and only the name is checked.
    void environment(Closure body) {
        body.delegate = new Expando()
        body.resolveStrategy = Closure.DELEGATE_ONLY
        body()
    }

    void stages(Closure body) {
        try {
            inside(body)
        } catch (Failed failed) {
            kept = failed.message
        }
    }
    void stage(String name, Closure body) { println "stage: ${name}"; inside(body) }
    void steps(Closure body) { inside(body) }
    void script(Closure body) { inside(body) }

    // Jenkins runs `sh -xe`, and fails the build unless the step requests the code.
    int sh(Map how) {
        def process = new ProcessBuilder('sh', '-xe', '-c', how.script as String).inheritIO().start()
        int code = process.waitFor()
        if (!how.returnStatus && code != 0) throw new Failed("sh ended with ${code}")
        code
    }
    void sh(String words) { sh(script: words) }
    void unstable(String why) { println "unstable: ${why}" }
    void error(String why) { throw new Failed(why) }

    void post(Closure body) { inside(body) }
    void always(Closure body) { inside(body) }
    void junit(Map what) { println "post: junit ${what.testResults}" }
    void archiveArtifacts(Map what) { println "post: keep ${what.artifacts}" }
}

def settings = new org.codehaus.groovy.control.CompilerConfiguration(scriptBaseClass: Steps.name)
def shell = new GroovyShell(this.class.classLoader, new Binding(), settings)
shell.evaluate(new File(args[0]))
if (Steps.kept != null) {
    println "failed: ${Steps.kept}"
    def code = (Steps.kept =~ /ended with (\d+)/)
    System.exit(code.find() ? code.group(1).toInteger() : 1)
}
