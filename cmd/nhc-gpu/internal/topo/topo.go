// Package topo prints where a node's GPUs, adapters and disks are, and the far ends of its
// links.
package topo

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/run"
	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/console"
)

// Command returns the command topo, for which the caller opens a run and calls Print. asJSON
// is its option --json.
func Command(asJSON *bool) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "topo [--json] [LBNL options]",
		Short: "Show the PCIe and NUMA topology of GPUs, adapters and disks",
		Long: `Prints the map of this node, as /sys has it: NUMA nodes, root ports and PCIe
switches, and below them GPUs, RDMA devices with their ports, and NVMe disks;
then what each GPU has in common with each RDMA device, in the words of
nvidia-smi topo -m. A port that checks leave out unless it is named says why.
check_hw_topology judges it. Last come the libraries and programs of vendors
that checks use, with path and version, or where nhc-gpu looked for them. No
driver is asked and no library is loaded. With HOSTROOT=DIR it is the map of
the node whose /sys lies below DIR.`,
		Example: `  nhc-gpu topo
  nhc-gpu topo --json`,
	}
	cmd.Flags().BoolVar(asJSON, "json", false, "print one object of JSON")
	cmd.Flags().Lookup("json").Hidden = true
	return cmd
}

// Print reads the map of the node in a worker, and prints it.
func Print(ctx context.Context, pool *run.Pool, limit time.Duration, asJSON bool) error {
	o := pool.Call(ctx, checks.Local, &wire.Request{Op: wire.OpTopo, Line: "read the map of the node"}, limit)
	resp, err := o.AnswerTo("read the map of the node")
	if err != nil {
		return err
	}
	var b bytes.Buffer
	if asJSON {
		e := json.NewEncoder(&b)
		e.SetEscapeHTML(false)
		err = e.Encode(resp.Topo.Value)
	} else {
		err = writeTopology(&b, resp.Topo.Value)
	}
	if err == nil {
		_, err = console.Screen.Write(b.Bytes())
	}
	if err != nil && !errors.Is(err, syscall.EPIPE) {
		return fmt.Errorf("print the map: %w", err)
	}
	return nil
}
