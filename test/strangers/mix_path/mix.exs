defmodule Stranger.MixProject do
  use Mix.Project

  def project do
    [
      app: :stranger,
      version: "1.0.0",
      deps: [{:canal_lock, path: "../canal_lock"}]
    ]
  end

  def application do
    [mod: {Stranger.Application, {CanalLock, max_per: 3}}]
  end
end
