// Package topo prints the topology of a node, and the list of switch ports its links lead to.
package topo

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/run"
	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/console"
)

// Command returns the command topo. The caller opens a run and calls Print. asJSON
// is its option --json.
func Command(asJSON *bool) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "topo [--json] [LBNL options]",
		Short: "Show the PCIe and NUMA topology of GPUs, adapters and disks",
		Long: `Prints the topology of this node from /sys: NUMA nodes, root ports and PCIe switches,
and below them GPUs, RDMA devices with their ports, and NVMe disks; then how each
GPU is connected to each RDMA device, in the terms of nvidia-smi topo -m. A port
that checks ignore by default has the reason beside it. check_hw_topology judges
the topology. At the end come the vendors' libraries and programs that checks use,
with path and version, or the places that were searched. Neither queries a driver
nor loads a library. HOSTROOT=DIR shows the node whose /sys is below DIR.

Exit status: 0, 10 if /sys cannot be read.`,
		Example: `  nhc-gpu topo
  nhc-gpu topo --json`,
	}
	cmd.Flags().BoolVar(asJSON, "json", false, "print one object of JSON")
	return cmd
}

// Print has a worker read the topology of the node, and prints it.
func Print(ctx context.Context, pool *run.Pool, limit time.Duration, asJSON bool) error {
	o := pool.Call(ctx, checks.Local, &wire.Request{Op: wire.OpTopo, Line: "read the topology of the node"}, limit)
	resp, err := o.AnswerTo("read the topology of the node")
	if err != nil {
		return err
	}
	var b bytes.Buffer
	if asJSON {
		e := json.NewEncoder(&b)
		e.SetEscapeHTML(false)
		err = e.Encode(resp.Topo)
	} else {
		err = writeTopology(&b, resp.Topo)
	}
	if err == nil {
		text := b.String()
		if !asJSON {
			text = console.Fit(text)
		}
		_, err = io.WriteString(console.Screen, text)
	}
	if err != nil && !errors.Is(err, syscall.EPIPE) {
		return fmt.Errorf("print the topology: %w", err)
	}
	return nil
}
