defmodule Downstream.Application do
  use Application

  # The child is named in mix.exs: `{CanalLock, max_per: 3}`, or `{:canal_lock, 3}`.
  @impl true
  def start(_type, {canal_lock, _options} = child) do
    {:ok, supervisor} = Supervisor.start_link([child], strategy: :one_for_one)
    :ok = :downstream.use_library(canal_lock)
    :ok = System.stop()
    {:ok, supervisor}
  end
end
