package ask

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nhc-gpu/nhc-gpu/checks/event"
	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
	"github.com/nhc-gpu/nhc-gpu/checks/session/outputs"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/console"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/options"
)

// Bundle writes the evidence about this node into a file.
func Bundle() *cobra.Command {
	var redact bool
	cmd := &cobra.Command{
		Use:   "bundle [FILE]",
		Short: "Write the evidence about this node into an archive",
		Long: `Writes a compressed tar archive, at most 5 MiB: the kernel's log, GPUs, the PCI bus,
network and InfiniBand ports with their counters, disks, processes, what the checks
remember, the last event, and versions. --redact removes serial numbers, UUIDs,
addresses, mounts, command lines, messages and the name of the node. FILE must not
exist; without FILE it is nhc-gpu-NODE-TIME.tar.gz in this directory. A health check
that fails with a new code writes such an archive below /var/lib/nhc-gpu by itself;
status and history name it. Needs root.

Exit status: 0, 10 wrong arguments, not root, or the file exists.`,
		Example: `  nhc-gpu bundle
  nhc-gpu bundle --redact /tmp/gpu017.tar.gz`,
		Args: cobra.ArbitraryArgs,
		RunE: func(_ *cobra.Command, words []string) error { return writeBundle(words, redact) },
	}
	cmd.Flags().BoolVar(&redact, "redact", false, "remove what identifies boards, users and the node")
	return cmd
}

func writeBundle(words []string, redact bool) error {
	file := ""
	if i := slices.IndexFunc(words, func(w string) bool {
		return !strings.Contains(w, "=") && (filepath.Base(w) != w || filepath.Ext(w) != "")
	}); i >= 0 {
		file = words[i]
		words = slices.Delete(slices.Clone(words), i, i+1)
	}
	r, err := openPast("bundle", words)
	if err != nil {
		return err
	}
	defer r.Close()
	now := time.Now()
	host := ""
	if redact {
		host = r.Name
	}
	if file == "" {
		file = fmt.Sprintf("nhc-gpu-%s-%s.tar.gz", r.Name, now.UTC().Format("20060102T150405Z"))
		if redact {
			file = "nhc-gpu-" + now.UTC().Format("20060102T150405Z") + ".tar.gz"
		}
	}
	if file, err = filepath.Abs(file); err != nil { //nolint:forbidigo // the directory of a person
		return options.Wrong{Err: fmt.Errorf("bundle %s: %w", file, err)}
	}
	var e *event.Event
	if list, err := outputs.Last(r.Node); err == nil && len(list) > 0 {
		e = list[0]
	}
	if e != nil && redact {
		e = e.Private()
	}
	if _, err := outputs.WriteEvidence(r.Node, r.Facts(), e, &wire.Request{Path: file, Who: host}, outputs.EvidenceLimit); errors.Is(err, os.ErrExist) {
		return options.Wrong{Err: fmt.Errorf("%w; name another file", err)}
	} else if err != nil {
		return err
	}
	fmt.Fprintln(console.Screen, "wrote", file)
	return nil
}
