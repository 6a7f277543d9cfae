// Package ask has the commands that describe checks and explain errors, show what a node remembers,
// and acknowledge errors.
package ask

import (
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/options"
)

// Commands are those about checks and errors.
func Commands() []*cobra.Command {
	return []*cobra.Command{checksCommand(), explainCommand(), xidCommand(), clearCommand(), Silence(), Accept(), RMA(), History(), Bundle(), Report(), Replay()}
}

// xidCommand explains Xids; "nhc-gpu xid 79" does, too.
func xidCommand() *cobra.Command {
	answer := func(_ *cobra.Command, words []string) error { return printAnswer(wire.AskExplain, words) }
	about := &cobra.Command{
		Use:   "explain CODE|LINE",
		Short: "Explain an Xid, its class and the remedy",
		Long: `Explains how check_gpu_xid judges a code (79, sxid:12028) or a whole line of the
kernel's log: its class, NVIDIA's description, the source, an override of the
site (/etc/nhc/xid.toml, or XID_POLICY in /etc/sysconfig/nhc, in nhc.conf or as
an argument), and the remedy.

Exit status: 0, 10 if it is neither a code nor a line with an Xid.`,
		Example: `  nhc-gpu xid explain 79
  nhc-gpu xid explain 'NVRM: Xid (PCI:0000:c1:00): 145, RLW_SRC_TRACK Nonfatal XC1 i0 Link 17 (0x04084507 0x00000004)'`,
		Args: options.Takes(1, maxWords, "a code (79, sxid:12028) or a line of the kernel's log"),
		RunE: answer,

		DisableFlagsInUseLine: true,
	}
	xid := &cobra.Command{
		Use:   "xid [explain] CODE|LINE",
		Short: "Explain Xid codes and how they are classified",
		Long: `Xid and SXid are the numbers of NVIDIA's errors in the kernel's log; check_gpu_xid
judges them. Without an argument prints this help.

Exit status: 0, 10 if it is neither a code nor a line with an Xid.`,
		Example: "  nhc-gpu xid 79",
		Args:    cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, words []string) error {
			if len(words) == 0 {
				return cmd.Help()
			}
			return answer(cmd, words)
		},
	}
	xid.AddCommand(about)
	return xid
}

// whoAsks names the person at the keyboard as far as the kernel knows: the login user stays known
// under sudo and su.
func whoAsks() string {
	who := fmt.Sprintf("uid %d", os.Getuid())
	const unset = "4294967295"                      // no login
	data, err := os.ReadFile("/proc/self/loginuid") //nolint:forbidigo // /proc/self
	if login := strings.TrimSpace(string(data)); err == nil && login != unset {
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
