defmodule Stranger.Application do
  use Application

  @impl true
  def start(_type, _args) do
    {:ok, supervisor} = Supervisor.start_link([{CanalLock, max_per: 3}], strategy: :one_for_one)
    :ok = Stranger.visit(CanalLock)
    :ok = System.stop()
    {:ok, supervisor}
  end
end
