-- What wrk sends and tells, for benchmarks/wrk.py: POSTs of the files 1, 2, … of a folder, and every latency.
-- Arguments: the folder, how many files, the text that a number replaces in them (none if empty), the first number.

local prepared = {}

local function read(path)
  local file = assert(io.open(path, "rb"))
  local text = file:read("*a")
  file:close()
  return text
end

local function drawn()
  return prepared[math.random(#prepared)]
end

-- The parts of a text between the markers: to join them takes a tenth of the time that replacing the markers takes, so
-- that what sends the requests is not what the measurement shows.
local function parts_of(text, marker)
  local parts, from = {}, 1
  while true do
    local first, last = text:find(marker, from, true)
    if not first then
      parts[#parts + 1] = text:sub(from)
      return parts
    end
    parts[#parts + 1] = text:sub(from, first - 1)
    from = last + 1
  end
end

-- One plain body is sent by wrk again and again. Only for what differs is Lua asked, before wrk begins to take the time.
function init(arguments)
  local folder, files, marker, serial = arguments[1], tonumber(arguments[2]), arguments[3], tonumber(arguments[4])
  wrk.method = "POST"
  wrk.headers["Content-Type"] = "application/json"
  if files == 1 and marker == "" then
    wrk.body = read(folder .. "/1")
    return
  end
  for number = 1, files do
    prepared[number] = wrk.format(nil, nil, nil, read(folder .. "/" .. number))
  end
  math.randomseed(1)
  request = drawn
  if marker ~= "" then
    for number = 1, files do
      prepared[number] = parts_of(prepared[number], marker)
    end
    request = function()
      serial = (serial + 1) % 100000000
      return table.concat(drawn(), string.format("%08d", serial))
    end
  end
end

function done(summary, latency, requests)
  local counts = {}
  for index = 1, #latency do
    counts[index] = string.format('"%d":%d', latency(index))
  end
  local errors = summary.errors
  io.write(string.format(
    '\n{"requests":%d,"microseconds":%d,"connect":%d,"read":%d,"write":%d,"status":%d,"timeout":%d,"latencies":{%s}}\n',
    summary.requests, summary.duration, errors.connect, errors.read, errors.write, errors.status, errors.timeout,
    table.concat(counts, ",")))
end
