defmodule CanalLock.ClusterTest do
  # What only the Elixir module does. The Erlang suites test the rest.
  use ExUnit.Case, async: false
  alias CanalLock.Cluster

  test "exports every function of :canal_lock_cluster" do
    ours = [__info__: 1, module_info: 0, module_info: 1, child_spec: 1, start_link: 1]
    erlangs = :canal_lock_cluster.module_info(:exports) -- [module_info: 0, module_info: 1]
    assert [] = erlangs -- Cluster.module_info(:exports)
    assert [] = Cluster.module_info(:exports) -- (erlangs ++ ours)
  end

  test "each function passes its arguments in the same order" do
    start()
    assert {:acquired, 1} = Cluster.acquire(:a, 2, 3, 5000)
    assert {:acquired, 6} = Cluster.acquire(:a, 2, 3, timeout_ms: 5000, permits: 5)
    assert [{self(), 6}] == Cluster.holders(:a)
    assert :full = Cluster.acquire(:a, 6)
    assert :full = Cluster.acquire(:a, 6, 1)
    assert :full = Cluster.acquire(:a, 6, timeout_ms: 10)
    assert :ok = Cluster.release(:a, permits: 4)
    assert {:error, :not_held} = Cluster.release(:a, permits: 3)
    # The share stays on this node for seconds.
    assert {:acquired, 3} = Cluster.acquire(:a, 6)
    assert {:acquired, 4} = Cluster.acquire(:a, 2, 3)
    in_use = fn -> for({_, permits} <- Cluster.holders(:a), do: permits) |> Enum.sum() end
    assert {:ok, 5} = Cluster.with_permit(:a, 6, in_use)
    assert {:ok, 5} = Cluster.with_permit(:a, 2, 3, in_use)
    assert {:ok, 6} = Cluster.with_permit(:a, 6, [permits: 2], in_use)
    assert {:ok, 6} = Cluster.with_permit(:a, 2, 3, [permits: 2], in_use)
    worker = spawn_link(fn -> Process.sleep(:infinity) end)
    assert :ok = Cluster.give(:a, worker)
    assert :ok = Cluster.give(:a, worker, permits: 2)
    assert :ok = Cluster.release(:a)
    assert {:error, :not_held} = Cluster.release(:a)
    assert [{worker, 3}] == Cluster.holders(:a)
    assert {:ok, %{limit: 6}} = Cluster.usage(:a)
    assert %{session: session, totals: %{lost: 0}} = Cluster.status()
    assert CanalLock.Quorum.fence(Cluster.session()) == session
  end

  test "a child starts the quorum locks, and is restarted after a stop" do
    start()
    assert %{id: Cluster, type: :supervisor} = Cluster.child_spec(members: [node()])
    assert CanalLock.Quorum.ready?()
    {:acquired, 1} = Cluster.acquire(:a, 1, timeout_ms: 5000)
    :ok = Cluster.stop()
    assert_receive {:canal_lock_cluster, :lost, :a}
    assert :none = Cluster.session()
    await_session()
    assert :ok = Cluster.release(:a)
    assert {:acquired, 1} = Cluster.acquire(:a, 1, timeout_ms: 5000)
  end

  test "a wrong argument or option is named" do
    start()

    for {call, words} <- [
          {fn -> Cluster.acquire(:a, -1) end, ~r/2nd argument: Limit must be a non-negative integer, got: -1/},
          {fn -> Cluster.acquire(:a, 1, permits: 0) end, ~r/^the option :permits must be a positive integer, got: 0$/},
          {fn -> Cluster.acquire(:a, 1, 1, capacity: 1) end, ~r/^unknown keys \[:capacity\]/},
          {fn -> Cluster.acquire(:a, 1, 1, %{}) end, ~r/^the timeout must be a number of milliseconds.*, got: %{}$/},
          {fn -> Cluster.with_permit(:a, 1, 1, [1], fn -> 0 end) end, ~r/^the options must be a keyword list/},
          {fn -> Cluster.release(:a, 2) end, ~r/^the options must be a keyword list such as \[permits: 2\], got: 2$/},
          {fn -> Cluster.give(:a, :b) end, ~r/2nd argument: Pid must be a pid of this node, got: b/},
          {fn -> Cluster.top(rows: 0) end, ~r/^the option :rows must be a positive integer, got: 0$/},
          {fn -> Cluster.start_link(cookie: 1) end, ~r/^unknown keys \[:cookie\]/},
          {fn -> Cluster.start_link(members: []) end, ~r/^the option :members must be a list of 1 to 16 nodes, got/}
        ] do
      assert_raise ArgumentError, words, call
    end
  end

  defp start do
    start_supervised!(CanalLock)
    start_supervised!({Cluster, members: [node()]})
    await_session()
  end

  defp await_session do
    if Cluster.session() == :none, do: await_session()
  end
end
