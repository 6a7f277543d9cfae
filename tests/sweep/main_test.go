// Package sweep_test shows nhc-gpu sweep on a real Slurm whose nodes have networks of their own: each
// node is a slurmd in a network namespace, with one interface on each of two bridges. A test breaks
// links and nodes, and checks that the sweep names the broken parts, and nothing else. Only addresses
// of these namespaces are ever contacted.
//
// It needs root, Slurm, iproute2 and nftables, and is skipped with the reason otherwise. See
// tests/cluster for the settings.
package sweep_test

import (
	"os"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/tests/cluster"
)

func TestMain(m *testing.M) { os.Exit(cluster.Main(m)) }
