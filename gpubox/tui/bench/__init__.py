"""The parts of the Bench screen."""
