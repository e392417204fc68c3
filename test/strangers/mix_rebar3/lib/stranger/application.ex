defmodule Stranger.Application do
  use Application

  @impl true
  def start(_type, _args) do
    {:ok, supervisor} = Supervisor.start_link([{:canal_lock, 3}], strategy: :one_for_one)
    :ok = Stranger.visit(:canal_lock)
    :ok = System.stop()
    {:ok, supervisor}
  end
end
