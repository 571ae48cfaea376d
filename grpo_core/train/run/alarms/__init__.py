"""Notice reward hacking and collapse while a run goes on; `watch.AlarmWatch` is the entrance."""
