defmodule Downstream.MixProject do
  use Mix.Project

  def project do
    [
      app: :downstream,
      version: "1.0.0",
      deps: [{:canal_lock, DEPENDENCY}]
    ]
  end

  def application do
    [mod: {Downstream.Application, {CanalLock, max_per: 3}}]
  end
end
