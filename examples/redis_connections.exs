# A Redis that bears eight connections, forty workers that want one all the time, and somebody who kills the workers.
# Redis itself is the judge: it refuses each connection too many, and counts what it refuses.
#
#     make demo-elixir
#     elixir -pa _build/dev/lib/canal_lock/ebin examples/redis_connections.exs --seconds 3 --holder worker
#
# The second line (after `mix compile`) shows what goes wrong when the wrong process holds the permit, and ends with
# status 1. Beside canal_lock this takes Debian's redis-server and erlang-redis-client, which is eredis.

abort = fn reason ->
  IO.puts(:stderr, "redis_connections: #{reason}")
  System.halt(1)
end

types = [limit: :integer, workers: :integer, seconds: :float, holder: :string]
{given, others, wrong} = OptionParser.parse(System.argv(), strict: types)
for {name, value} <- wrong, do: abort.("cannot use #{name} #{value}; there are #{inspect(types)}")
for word <- others, do: abort.("cannot use #{word}; there are #{inspect(types)}")
options = Map.merge(%{limit: 8, workers: 40, seconds: 10.0, holder: "connection"}, Map.new(given))
for {name, value} <- options, is_number(value), value <= 0, do: abort.("--#{name} is not positive: #{value}")
options.workers > options.limit || abort.("--workers is not more than --limit: nobody would have to be refused")
options.holder in ["connection", "worker"] || abort.("--holder is not connection or worker: #{options.holder}")

Code.ensure_loaded?(CanalLock) || abort.("no CanalLock on the code path; the head of this file says how to run it")
Code.ensure_loaded?(:eredis) || abort.("no eredis on the code path (Debian: erlang-redis-client)")
System.find_executable("redis-server") || abort.("no redis-server on the path (Debian: redis-server)")

# ## The server

defmodule Redis do
  # Redis takes the place of a shell. That has left a process behind which reads until this VM closes the pipe, because
  # it has come to its end or was killed, and then ends Redis.
  @until_we_end ~S[exec 3<&0; (read _ <&3; kill $$) >/dev/null & exec "$0" "$@" 3<&-]

  # On a port of the loopback that is free, and with another one if somebody else is quicker. Writes nothing to disk.
  def start(max_clients, attempts \\ 5) do
    {:ok, socket} = :gen_tcp.listen(0, ip: {127, 0, 0, 1})
    {:ok, port} = :inet.port(socket)
    :ok = :gen_tcp.close(socket)
    command = ~w(redis-server --bind 127.0.0.1 --port #{port} --maxclients #{max_clients} --appendonly no --save)
    arguments = ["-c", @until_we_end | command ++ [""]]
    shell = Port.open({:spawn_executable, "/bin/sh"}, [:binary, :exit_status, line: 1000, args: arguments])

    case await(shell, "") do
      :ready -> port
      {:ended, _} when attempts > 1 -> start(max_clients, attempts - 1)
      {:ended, last_line} -> raise "Redis does not start: #{last_line}"
    end
  end

  defp await(shell, last_line) do
    receive do
      {^shell, {:data, {_, line}}} -> if line =~ "Ready to accept", do: :ready, else: await(shell, line)
      {^shell, {:exit_status, _}} -> {:ended, last_line}
    end
  end

  def connect(port) do
    {:ok, connection} = :eredis.start_link(host: ~c"127.0.0.1", port: port, reconnect_sleep: :no_reconnect)
    connection
  end

  # Without a timeout: that the caller has become impatient does not end what Redis does for it.
  def ask(connection, words), do: :eredis.q(connection, words, :infinity)

  # To close our end is not enough: then the system knows of it, and Redis not yet. (Though nobody was killed, Redis
  # refused 5 to 118 of 750 connections so.) But it takes a connection off its list before it closes its own end. So we
  # say QUIT, and wait until that end is closed: this is when eredis ends.
  def disconnect(connection) do
    monitor = Process.monitor(connection)
    :eredis.q_noreply(connection, ["QUIT"])

    receive do
      {:DOWN, ^monitor, :process, _, _} -> :ok
    end
  end

  # As Redis lists them at this moment, but for the one that asks.
  def connections(connection) do
    {:ok, list} = ask(connection, ["CLIENT", "LIST"])
    length(String.split(list, "\n", trim: true)) - 1
  end

  # Since it was started. The list is never longer than `maxclients`, because Redis sees to that itself: this is the
  # count that tells whether it had to, and nothing between two looks escapes it.
  def refused(connection) do
    {:ok, stats} = ask(connection, ["INFO", "stats"])
    [_, refused] = Regex.run(~r/rejected_connections:(\d+)/, stats)
    String.to_integer(refused)
  end
end

defmodule Figures do
  def start(names) do
    :ets.new(__MODULE__, [:named_table, :public])
    :ets.insert(__MODULE__, for(name <- names, do: {name, 0}))
  end

  def add(name), do: :ets.update_counter(__MODULE__, name, 1)
  def raise_to(name, value), do: :ets.insert(__MODULE__, {name, max(value, get(name))})
  def get(name), do: :ets.lookup_element(__MODULE__, name, 2)
end

# ## A call, and who holds the permit for it
#
# The permit is taken before there is a connection, and released when Redis has none any more. The worker could do this
# itself (`--holder worker`). Then it holds the permit, and when it is killed, the VM gives the permit back and closes
# the socket, of which Redis hears a moment later. By then another worker may have the permit and be there, one too
# many: in ten seconds 500 to 1,000 workers were killed while they held, and Redis refused 19 to 254 connections.
#
# canal_lock is exact about permits. But a permit stands for something, here for a place at Redis, and so *its holder
# has to be the process whose end is the end of the use*: not a worker, which may die at any time, but a process of the
# connection's own, which ends when Redis has closed it. It is not linked to the worker, and goes on when that is dead,
# because Redis does so, too: the place is taken until the command is done. (If that takes too long, have the server
# end it, by CLIENT KILL or pg_terminate_backend; the process will see the end of its connection.) Who kills the process
# itself is back at the worker that holds: then nobody is left in this VM who could wait for the server.
# docs/operating.md has the rule under "What a permit stands for".

defmodule Call do
  def by_caller(port, limit) do
    CanalLock.with_permit(:redis, limit, 1, fn ->
      connection = Redis.connect(port)

      try do
        {:ok, :undefined} = Redis.ask(connection, ["BLPOP", "a list that stays empty", "0.02"])
        Figures.add(:calls)
      after
        Redis.disconnect(connection)
      end
    end)
  end

  def by_another(port, limit) do
    caller = self()

    Connections
    |> Task.Supervisor.async_nolink(fn ->
      answer = by_caller(port, limit)
      if answer != :full and not Process.alive?(caller), do: Figures.add(:outlived)
      answer
    end)
    |> Task.await(:infinity)
  end
end

# ## All of them at work
#
# Reports are silenced: the supervisor's of each worker that is killed, and those of what Redis refuses. Figures tell.

:logger.set_primary_config(:level, :none)
Figures.start([:calls, :killed, :outlived, :peak])
port = Redis.start(options.limit + 1)
observer = Redis.connect(port)

{:ok, tree} =
  Supervisor.start_link(
    [
      {CanalLock, max_per: options.limit},
      {Task.Supervisor, name: Connections},
      {Task.Supervisor, name: Workers, max_restarts: 1_000_000}
    ],
    strategy: :one_for_one
  )

call = if options.holder == "worker", do: &Call.by_caller/2, else: &Call.by_another/2
endlessly = fn step -> step |> Stream.repeatedly() |> Stream.run() end

work = fn -> if call.(port, options.limit) == :full, do: Process.sleep(:rand.uniform(10)) end
look = fn -> Figures.raise_to(:peak, Redis.connections(observer)) end

kill = fn ->
  Process.sleep(1)
  Workers |> Task.Supervisor.children() |> Enum.random() |> Process.exit(:kill)
  Figures.add(:killed)
end

IO.puts("#{options.workers} workers, and a Redis on port #{port} that bears #{options.limit} connections of theirs")
for _ <- 1..options.workers, do: Task.Supervisor.start_child(Workers, fn -> endlessly.(work) end, restart: :permanent)
looking = Task.async(fn -> endlessly.(look) end)
killing = Task.async(fn -> endlessly.(kill) end)

# In a terminal one line that changes, elsewhere one a second.
{pause, before, behind} = if match?({:ok, _}, :io.columns()), do: {100, "\r", ""}, else: {1000, "", "\n"}

for left <- round(options.seconds * 1000)..1//-pause do
  Process.sleep(min(left, pause))
  [calls, killed, peak] = Enum.map([:calls, :killed, :peak], &Figures.get/1)
  IO.write("#{before}#{calls} calls, #{killed} workers killed, at most #{peak} connections#{behind}")
end

# ## What came of it
#
# What the killer has done is looked at before the supervisor ends the workers. The calls under way come to their end,
# and then nothing is left, neither here nor in Redis.

Task.shutdown(killing, :brutal_kill)
{outlived, given_back} = {Figures.get(:outlived), CanalLock.info().given_back}
:ok = Supervisor.terminate_child(tree, Workers)

for connection <- Task.Supervisor.children(Connections), monitor = Process.monitor(connection) do
  receive do
    {:DOWN, ^monitor, :process, _, _} -> :ok
  end
end

Task.shutdown(looking, :brutal_kill)
info = CanalLock.info()

results = [
  {"permits granted", info.granted, :any},
  {"calls made", Figures.get(:calls), :any},
  {"times full", info.refused, :any},
  {"workers killed", Figures.get(:killed), :any},
  {"calls that outlived their worker", outlived, :any},
  {"permits given back for the dead", given_back, :any},
  {"connections at most, by CLIENT LIST", Figures.get(:peak), [options.limit]},
  {"connections refused by Redis", Redis.refused(observer), [0]},
  {"connections left", Redis.connections(observer), [0]},
  {"permits left", info.permits, [0]},
  {"holders left", info.holders, [0]},
  {"releases of what was not held", info.not_held, [0]},
  {"keys that audit/0 finds wrong", length(CanalLock.audit()), [0]}
]

broken = for {what, figure, good} <- results, good != :any, figure not in good, do: what
IO.puts("#{if behind == "", do: "\n"}#{Enum.map(results, fn {what, figure, _} -> "  #{figure} #{what}\n" end)}")
IO.puts(if broken == [], do: "The limit was kept, and reached.", else: "Broken: #{Enum.join(broken, ", ")}.")
System.halt(if broken == [], do: 0, else: 1)
