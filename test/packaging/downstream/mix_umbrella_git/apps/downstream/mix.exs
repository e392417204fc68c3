defmodule Downstream.MixProject do
  use Mix.Project

  def project do
    [
      app: :downstream,
      version: "1.0.0",
      build_path: "../../_build",
      deps_path: "../../deps",
      lockfile: "../../mix.lock",
      deps: [{:canal_lock, git: "https://example.org/canal_lock.git", branch: "main"}]
    ]
  end

  def application do
    [mod: {Downstream.Application, {CanalLock, max_per: 3}}]
  end
end
