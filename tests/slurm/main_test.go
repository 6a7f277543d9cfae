// Package slurm_test shows nhc-gpu on a real Slurm. Each test starts its own cluster from the
// distribution's packages (munged, slurmctld, four slurmd; no systemd; see tests/cluster), with
// nhc-gpu as its HealthCheckProgram, breaks something, and checks the resulting state of the nodes.
// In tests about jobs each node has eight GPUs, simulated by tests/fakenvml, nhc-gpu as Prolog and
// Epilog, and a real rsyslogd.
//
// It needs root and Slurm, and is skipped with the reason otherwise. With go test -artifacts the
// logs and files of every cluster are kept.
package slurm_test

import (
	"os"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/tests/cluster"
)

func TestMain(m *testing.M) { os.Exit(cluster.Main(m)) }
