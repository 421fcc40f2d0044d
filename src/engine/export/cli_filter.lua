-- The largest block, and how many segments of a size all blocks hold, by either number.
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

-- The first number of an option: of "4-8" the least that the job needs. Options that
-- are not set are nil or a word.
local function number(value)
  if value == nil then return nil end
  local digits = string.match(tostring(value), "^%s*(%d+)")
  local count = digits and tonumber(digits)
  if count == nil or count < 1 then return nil end
  return count
end

-- The largest segment in which so many nodes fit into verified blocks.
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
    return string.format("; verified nodes are %d in all, the most in one domain %d", segments(1, "verified"), largest("verified"))
  end
  return string.format("; the largest that fits is --segment=%d", math.max(largest("verified"), 1))
end

-- What is to be said about a request, and whether no placement can serve it.
local function judged(nodes, segment)
  if segment == nil then
    if nodes == nil or nodes <= largest("possible") then return nil, false end
    local text = string.format("%d nodes are more than any NVLink domain holds (%d), and without --segment nothing keeps parts together", nodes, largest("possible"))
    return text .. hint(nodes), false
  end
  if nodes ~= nil and nodes <= segment then segment = nodes end
  if segment > largest("possible") then
    return string.format("--segment=%d: no NVLink domain has so many nodes in order, the largest has %d", segment, largest("possible")) .. hint(nodes), true
  end
  local wanted = nodes and math.ceil(nodes / segment) or 1
  if wanted > segments(segment, "possible") then
    return string.format("%d nodes in segments of %d need %d segments, and NVLink domains have room for %d", nodes, segment, wanted, segments(segment, "possible")) .. hint(nodes), true
  end
  -- Where the run verified nobody, that is no news about this job.
  if largest("verified") > 0 and wanted > segments(segment, "verified") then
    return string.format("--segment=%d fits only where nodes were not verified: verified nodes hold %d of %d segments", segment, segments(segment, "verified"), wanted) .. hint(nodes), false
  end
  return nil, false
end

function slurm_cli_pre_submit(options, offset)
  -- A step runs where its job is.
  if options["type"] == "srun" and os.getenv("SLURM_JOB_ID") then return slurm.SUCCESS end
  -- Whatever is wrong here must not stop a job.
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
