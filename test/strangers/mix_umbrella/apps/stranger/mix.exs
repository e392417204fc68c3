defmodule Stranger.MixProject do
  use Mix.Project

  def project do
    [
      app: :stranger,
      version: "1.0.0",
      build_path: "../../_build",
      deps_path: "../../deps",
      lockfile: "../../mix.lock",
      deps: [{:canal_lock, in_umbrella: true}]
    ]
  end

  def application do
    [mod: {Stranger.Application, {CanalLock, max_per: 3}}]
  end
end
