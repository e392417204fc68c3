defmodule RedisConnectionsTest do
  # Runs the example as its readers do: as an OS process, with a Redis of its own and real sockets. The example
  # judges its own run, so one test makes that judgment fail.
  use ExUnit.Case, async: false

  @example "examples/redis_connections.exs"

  test "P1, P4: Redis refuses no connection while workers are killed, if the connection's process holds the permit" do
    {output, 0} = run(~w(--limit 8 --workers 40 --seconds 2))
    figures = figures(output)
    assert output =~ "The limit was reached and never exceeded."

    assert %{"maximum of connections in CLIENT LIST" => 8, "connections refused by Redis" => 0} = figures
    assert %{"permits granted" => granted, "calls made" => granted} = figures
    assert %{"permits released by deaths" => 0, "releases by non-holders" => 0} = figures
    assert %{"connections left" => 0, "permits left" => 0, "holders left" => 0} = figures
    assert %{"keys that audit/0 reports" => 0} = figures

    for figure <- ["calls made", "refusals (full)", "workers killed", "calls that outlived their worker"] do
      assert figures[figure] > 0, "#{figure}: #{figures[figure]}"
    end
  end

  # A run can succeed by chance, so this tries up to five.
  test "the example exits with 1 and the reason if the worker holds the permit and Redis refuses a connection" do
    {output, 1} = first_broken(5)
    figures = figures(output)
    assert output =~ ~r/^Failed: .*connections refused by Redis/m
    assert figures["connections refused by Redis"] > 0
    assert figures["permits released by deaths"] > 0
  end

  test "Redis exits when the VM that started it is killed" do
    elixir = System.find_executable("elixir")
    vm = Port.open({:spawn_executable, elixir}, [:binary, :exit_status, line: 1000, args: arguments(~w(--seconds 600))])
    assert_receive {^vm, {:data, {:eol, line}}}, 60_000
    [_, port] = Regex.run(~r/to Redis on port (\d+)/, line)
    port = String.to_integer(port)
    assert :ok = connect(port)

    {:os_pid, pid} = Port.info(vm, :os_pid)
    {"", 0} = System.cmd("kill", ["-KILL", "#{pid}"])
    assert_receive {^vm, {:exit_status, _}}, 60_000
    assert :gone = await_end(port)
  end

  test "an error names the wrong argument" do
    for {arguments, sentence} <- [
          {~w(--limit eight), "invalid option --limit eight"},
          {~w(--speed 3), "invalid option --speed"},
          {~w(fast), "unexpected argument fast"},
          {~w(--workers 8), "--workers must exceed --limit"},
          {~w(--workers 0), "--workers must be positive, got: 0"},
          {~w(--seconds -1), "--seconds must be positive, got: -1.0"},
          {~w(--holder nobody), "--holder must be connection or worker, got: nobody"}
        ] do
      {output, 1} = run(arguments)
      assert output =~ "redis_connections: " <> sentence
    end
  end

  defp first_broken(attempts) do
    case run(~w(--limit 8 --workers 40 --seconds 2 --holder worker)) do
      {_, 0} when attempts > 1 -> first_broken(attempts - 1)
      ended -> ended
    end
  end

  defp run(arguments), do: System.cmd("elixir", arguments(arguments), stderr_to_stdout: true)

  defp arguments(arguments), do: ["-pa", Path.dirname(:code.which(CanalLock)), @example | arguments]

  defp figures(output) do
    for [_, number, figure] <- Regex.scan(~r/^  (\d+) (.+)$/m, output),
        into: %{},
        do: {figure, String.to_integer(number)}
  end

  defp connect(port) do
    with {:ok, socket} <- :gen_tcp.connect(~c"127.0.0.1", port, []), do: :gen_tcp.close(socket)
  end

  # Redis exits a moment after the VM.
  defp await_end(port) do
    if connect(port) == {:error, :econnrefused} do
      :gone
    else
      Process.sleep(10)
      await_end(port)
    end
  end
end
