// Package ask has the commands by which a person asks what a node remembers, and what errors mean,
// and acknowledges them.
package ask

import (
	"fmt"
	"maps"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nhc-gpu/nhc-gpu/checks/plan"
	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
	"github.com/nhc-gpu/nhc-gpu/checks/session/setting"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/console"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/health"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/options"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/report"
)

// Commands are what a person does about Xids: ask, and clear.
func Commands() []*cobra.Command {
	xid := &cobra.Command{
		Use:   "xid",
		Short: "Tell what is made of a GPU's errors in the kernel's log",
		Long:  `Xid and SXid are the numbers of NVIDIA's errors in the kernel's log; check_gpu_xid judges them.`,
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	xid.AddCommand(&cobra.Command{
		Use:   "explain CODE|LINE",
		Short: "Tell the class of an Xid, why it has it, and what to do",
		Long: `Tells what check_gpu_xid makes of a code (79, sxid:12028), or of a whole line of
the kernel's log: its class, what NVIDIA says, the source, the site's own word
(/etc/nhc/xid.toml, or XID_POLICY of /etc/sysconfig/nhc, of nhc.conf or as a
word), and what to do.`,
		Example: `  nhc-gpu xid explain 79
  nhc-gpu xid explain 'NVRM: Xid (PCI:0000:c1:00): 145, RLW_SRC_TRACK Nonfatal XC1 i0 Link 17 (0x04084507 0x00000004)'`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(_ *cobra.Command, words []string) error { return printAnswer(wire.AskExplain, words) },
	})
	return []*cobra.Command{explainCommand(), xid, clearCommand()}
}

const explainName = "explain"

// explainCommand explains what a person has in hand.
func explainCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   explainName + " MESSAGE",
		Short: "Explain a kernel message, an Xid, a code, a reason or a counter",
		Long: `Explains a line of the kernel's log (with or without what dmesg or syslog print
before it), an Xid or SXid (79, sxid:12028), the code of a finding
(gpu.recovery.lost), a reason or message of nhc-gpu, or a counter of errors
(symbol_error): what it means, what the checks do with it, what to do, and the
source.

Exit status: 0, or 10 if nothing is known of it.`,
		Example: `  nhc-gpu explain 'mlx5_core 0000:bb:00.0: poll_health:1083:(pid 0): Fatal error 1 detected'
  nhc-gpu explain 79
  nhc-gpu explain 'NHC: gpu3 lost 0000:66:00.0: reboot (check_gpu_count) [gpu.recovery.lost]'`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(_ *cobra.Command, words []string) error { return printAnswer(wire.AskMessage, words) },
	}
	cmd.Flags().SetInterspersed(false) // a message may have words that begin with a dash
	return cmd
}

// printAnswer prints what a worker knows of the words.
func printAnswer(question string, words []string) error {
	r, rest, err := xidRun(words)
	if err != nil {
		return err
	}
	defer r.Close()
	resp, err := r.Ask(question, rest)
	if err != nil {
		return err
	}
	fmt.Fprint(console.Screen, resp.Text)
	return nil
}

// xidRun is a run for a person who asks about the node as check_gpu_xid would see it, with
// the settings of the node's configuration and those among the words, and the words that
// are left. A configuration that cannot be used is reported, and its settings are not used.
func xidRun(words []string) (r *health.Run, rest []string, err error) {
	var given []string
	for _, w := range words {
		name, _, ok := strings.Cut(w, "=")
		if ok && setting.IsName(name) && name == strings.ToUpper(name) {
			given = append(given, w)
			continue
		}
		rest = append(rest, w)
	}
	r, _, err = report.Open(&options.Options{Words: given}, report.Options{})
	if err != nil {
		fmt.Fprintf(console.Alerts, "nhc-gpu: warning: %v: settings in it are not used\n", err)
		if r, err = report.Start(&options.Options{Words: given}); err != nil {
			return nil, nil, err
		}
	} else {
		maps.Copy(r.Set.Vars, assignedBefore(r.Plan, "check_gpu_xid"))
	}
	return r, rest, nil
}

// assignedBefore is what the lines of a plan assign before a check, or in all if
// there is no such check.
func assignedBefore(p *plan.Plan, check string) map[string]string {
	vars := map[string]string{}
	for i := range p.Steps {
		if p.Steps[i].Name == check {
			break
		}
		for _, v := range p.Steps[i].Sets {
			vars[v.Name] = v.Value
		}
	}
	return vars
}

// whoAsks names the person at the keyboard as well as the kernel knows: who
// has logged in stays known under sudo and su.
func whoAsks() string {
	who := fmt.Sprintf("uid %d", os.Getuid())
	const nobody = "4294967295"                     // not by way of a login
	data, err := os.ReadFile("/proc/self/loginuid") //nolint:forbidigo // /proc/self
	if login := strings.TrimSpace(string(data)); err == nil && login != nobody {
		who += ", logged in as uid " + login
	}
	if user := os.Getenv("SUDO_USER"); user != "" {
		who += ", sudo of " + strings.Map(printable, user)
	}
	return who
}

func printable(r rune) rune {
	if r <= ' ' || r > '~' {
		return '?'
	}
	return r
}
