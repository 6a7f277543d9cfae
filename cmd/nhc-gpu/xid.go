package main

import (
	"errors"
	"fmt"
	"log/syslog"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/slurm"
)

// xidCommands are what a person does about Xids: ask, and clear.
func xidCommands() []*cobra.Command {
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
(/etc/nhc/xid.toml, or XID_POLICY=FILE), and what to do.`,
		Example: `  nhc-gpu xid explain 79
  nhc-gpu xid explain 'NVRM: Xid (PCI:0000:c1:00): 145, RLW_SRC_TRACK Nonfatal XC1 i0 Link 17 (0x04084507 0x00000004)'`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(_ *cobra.Command, words []string) error {
			env, rest := xidEnv(words)
			text, err := checks.ExplainXid(env, strings.Join(rest, " "))
			if err != nil {
				return err
			}
			fmt.Print(text)
			return nil
		},
	})
	return []*cobra.Command{xid, {
		Use:   "clear [DEVICE] [CODE]",
		Short: "Take a GPU's errors off the node: an operator's word",
		Long: `Tells check_gpu_xid that errors are over: those of one GPU (gpu3, 0000:c1:00.0,
GPU-...), of one code (79, sxid:12028), of both, or all. It holds for what has
been logged until now; what is logged later counts again. The next run resumes
the node if nothing else is wrong. Who did it is written to syslog. Needs root.`,
		Example: `  nhc-gpu clear gpu6 79
  nhc-gpu clear`,
		Args: cobra.ArbitraryArgs,
		RunE: func(_ *cobra.Command, words []string) error { return clearXids(words) },
	}}
}

// xidEnv is the node that a person asks about, and the words that are left.
// HOSTROOT=DIR is another node, XID_POLICY=FILE another policy.
func xidEnv(words []string) (env *checks.Env, rest []string) {
	vars := map[string]string{}
	for _, w := range words {
		name, value, ok := strings.Cut(w, "=")
		if ok && (name == "HOSTROOT" || name == "XID_POLICY") {
			vars[name] = value
			continue
		}
		rest = append(rest, w)
	}
	return &checks.Env{Host: probe.NewHost(vars["HOSTROOT"]), Vars: vars}, rest
}

func clearXids(words []string) error {
	env, rest := xidEnv(words)
	node := nodeFromEnviron(os.Getenv, slurm.Manual)
	if node.bad != nil {
		return node.bad
	}
	dir, spare := node.past()
	env.Host.SetPast(dir, spare)
	who := whoAsks()
	cleared, err := checks.ClearXids(env, rest, who)
	switch {
	case errors.Is(err, probe.ErrNoMemory):
		return errors.New("clear: only root can clear what runs of root remember")
	case err != nil:
		return err
	}
	what := strings.Join(cleared, ", ")
	if what == "" {
		what = "nothing that is known"
	}
	sendSyslogAs(syslog.LOG_NOTICE, "nhc", []string{fmt.Sprintf("nhc-gpu clear %s: by %s: cleared %s", strings.Join(rest, " "), who, what)})
	fmt.Println("cleared", what)
	return nil
}

// whoAsks names the person at the keyboard as well as the kernel knows: who
// has logged in stays known under sudo and su.
func whoAsks() string {
	who := fmt.Sprintf("uid %d", os.Getuid())
	const nobody = "4294967295" // not by way of a login
	data, err := os.ReadFile("/proc/self/loginuid")
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
