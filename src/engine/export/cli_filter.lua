-- The largest block, and the number of segments of a size in all blocks, by either capacity.
local function largest(key)
  local most = 0
  for _, block in ipairs(BLOCKS) do
    if block[key] > most then most = block[key] end
  end
  return most
end

local function segments(size, key)
  local count = 0
  for _, block in ipairs(BLOCKS) do
    count = count + math.floor(block[key] / size)
  end
  return count
end

-- The first number of an option: of "4-8" the minimum of the job. An unset option is
-- nil or a text.
local function number(value)
  if value == nil then return nil end
  local digits = string.match(tostring(value), "^%s*(%d+)")
  local count = digits and tonumber(digits)
  if count == nil or count < 1 then return nil end
  return count
end

-- The largest segment size for which this many nodes fit into verified blocks.
local function fitting(nodes)
  for size = math.min(nodes, largest("verified")), 1, -1 do
    if nodes % size == 0 and nodes / size <= segments(size, "verified") then
      return size
    end
  end
  return nil
end

local function hint(nodes)
  local size = nodes and fitting(nodes)
  if size then return string.format("; --segment=%d fits", size) end
  if nodes then
    return string.format("; there are %d verified nodes, at most %d in one domain", segments(1, "verified"), largest("verified"))
  end
  return string.format("; the largest that fits is --segment=%d", math.max(largest("verified"), 1))
end

-- The message for a request, and whether no placement can satisfy it.
local function judged(nodes, segment)
  if segment == nil then
    if nodes == nil or nodes <= largest("possible") then return nil, false end
    local text = string.format("%d nodes are more than any NVLink domain holds (%d), and without --segment nothing keeps parts together", nodes, largest("possible"))
    return text .. hint(nodes), false
  end
  if nodes ~= nil and nodes <= segment then segment = nodes end
  if segment > largest("possible") then
    return string.format("--segment=%d: no NVLink domain has that many usable nodes, the largest has %d", segment, largest("possible")) .. hint(nodes), true
  end
  local wanted = nodes and math.ceil(nodes / segment) or 1
  if wanted > segments(segment, "possible") then
    return string.format("%d nodes in segments of %d need %d segments, and NVLink domains have room for %d", nodes, segment, wanted, segments(segment, "possible")) .. hint(nodes), true
  end
  -- If the run verified no node, the job gets no message.
  if largest("verified") > 0 and wanted > segments(segment, "verified") then
    return string.format("--segment=%d fits only on unverified nodes: verified nodes hold %d of %d segments", segment, segments(segment, "verified"), wanted) .. hint(nodes), false
  end
  return nil, false
end

function slurm_cli_pre_submit(options, offset)
  -- A step runs where its job is.
  if options["type"] == "srun" and os.getenv("SLURM_JOB_ID") then return slurm.SUCCESS end
  -- An error in this filter must not stop a job.
  local ok, text, impossible = pcall(function()
    return judged(number(options["nodes"]), number(options["segment"]))
  end)
  if not ok or text == nil then return slurm.SUCCESS end
  text = text .. " (measured by fabricgate run " .. RUN .. ")"
  if impossible and MODE == "enforce" then
    slurm.log_error("%s", text)
    return slurm.ERROR
  end
  slurm.log_info("%s", text)
  return slurm.SUCCESS
end

function slurm_cli_setup_defaults(options, early)
  return slurm.SUCCESS
end

function slurm_cli_post_submit(offset, job_id, step_id)
  return slurm.SUCCESS
end
