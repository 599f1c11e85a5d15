"""Whether speed holds over time: an agent's load for minutes, and what creeps, sinks or alternates."""
