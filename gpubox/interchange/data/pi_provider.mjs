// An extension of the pi coding agent: the provider that `gpubox launch pi` names. Its settings come in the environment.
export default function (pi) {
  const { providers } = JSON.parse(process.env.GPUBOX_PI_SETTINGS);
  for (const [name, provider] of Object.entries(providers)) {
    const models = provider.models.map((model) => ({
      reasoning: false,
      input: ["text"],
      cost: { input: 0, output: 0, cacheRead: 0, cacheWrite: 0 },
      contextWindow: 32768,
      maxTokens: 8192,
      compat: provider.compat,
      ...model,
    }));
    pi.registerProvider(name, { ...provider, models });
  }
}
