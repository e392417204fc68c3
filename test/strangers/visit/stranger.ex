defmodule Stranger do
  # Far more than it takes.
  @patience_ms 10_000

  # Three get in, and the fourth does not, until one of the three has died. By the module of either language.
  def visit(canal_lock) do
    [{first, monitor}, _, _] = for _ <- 1..3, do: holder(canal_lock)
    :full = canal_lock.acquire(:db, 3, 1)
    Process.exit(first, :kill)

    receive do
      {:DOWN, ^monitor, :process, ^first, :killed} -> :ok
    end

    # The permit may be there some microseconds later than the news of the death.
    {:acquired, 3} = admitted(canal_lock, System.monotonic_time(:millisecond) + @patience_ms)
    IO.puts("canal_lock: three got in, a fourth found it full, and the permit of one that died came back")
  end

  defp holder(canal_lock) do
    visitor = self()

    {holder, monitor} =
      spawn_monitor(fn ->
        send(visitor, {self(), canal_lock.acquire(:db, 3, 1)})

        receive do
          :stop -> :ok
        end
      end)

    receive do
      {^holder, {:acquired, _}} -> {holder, monitor}
      {^holder, answer} -> exit({:not_admitted, answer})
      {:DOWN, ^monitor, :process, ^holder, reason} -> exit(reason)
    end
  end

  defp admitted(canal_lock, deadline_ms) do
    case canal_lock.acquire(:db, 3, 1) do
      :full ->
        true = System.monotonic_time(:millisecond) < deadline_ms
        true = :erlang.yield()
        admitted(canal_lock, deadline_ms)

      acquired ->
        acquired
    end
  end
end
