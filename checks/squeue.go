package checks

import (
	"bytes"
	"time"
)

// The limits of a squeue call: its duration if the run has no time limit, and the bytes of
// output that are read.
const (
	DefaultSqueue = "/usr/bin/squeue"

	SqueueTime   = 10 * time.Second
	SqueueOutput = 4 << 20
	SqueueErrors = 4 << 10
)

// JobEnded reports whether a state of Slurm is that of a job that has ended.
func JobEnded(state string) bool {
	switch state {
	case "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "REVOKED", "TIMEOUT":
		return true
	}
	return false
}

// JobWaits reports whether a state of Slurm is that of a job that waits for its nodes.
func JobWaits(state string) bool {
	switch state {
	case "PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT":
		return true
	}
	return false
}

// SlurmError returns the last error message of Slurm, "" if there is none. A slurmctld that
// does not answer is not a fault of this node. A squeue that fails without a message has no
// jobs to list, as in LBNL NHC.
func SlurmError(errs []byte) (said string) {
	for line := range bytes.Lines(errs) {
		line = bytes.TrimSpace(line)
		if bytes.HasPrefix(line, []byte("squeue: ")) || bytes.HasPrefix(line, []byte("slurm_")) {
			said = string(line)
		}
	}
	return said
}
