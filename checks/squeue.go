package checks

import (
	"bytes"
	"time"
)

// The bounds of a question to Slurm: how long it may take where the run has no
// time limit, and how much of the answer is read, in bytes.
const (
	DefaultSqueue = "/usr/bin/squeue"

	SqueueTime   = 10 * time.Second
	SqueueOutput = 4 << 20
	SqueueErrors = 4 << 10
)

// SlurmError is the last of Slurm's own errors, "" if there is none. slurmctld that
// does not answer is the fault of none of the nodes that ask it. A squeue that
// fails without a word has no jobs to name, as in LBNL NHC.
func SlurmError(errs []byte) (said string) {
	for line := range bytes.Lines(errs) {
		line = bytes.TrimSpace(line)
		if bytes.HasPrefix(line, []byte("squeue: ")) || bytes.HasPrefix(line, []byte("slurm_")) {
			said = string(line)
		}
	}
	return said
}
