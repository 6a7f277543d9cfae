package options

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/console"
)

// Help prints the usage, the same for -h, --help and help. It lists no commands to a program that
// was started by LBNL NHC's name.
func Help(argv0 string) {
	name := filepath.Base(argv0)
	title := name + " Usage"
	syntax, commands := "", ""
	if IsOwn(name) {
		syntax, commands = ownSyntax, OwnHelp
	}
	fmt.Fprintf(console.Screen, HelpText, title, strings.Repeat("-", len(title)), name, syntax, commands, name, name, name, name)
}

// HelpText is the help, a format.
const HelpText = `
%s
%s

  Syntax:  %s [<options>] [<var>=<value> [...]]
%s
 OPTION            DESCRIPTION
-------------------------------------------------------------------------------
 -h                Show this help
 -D <confdir>      Use config directory <confdir> (default: /etc/nhc)
 -a                Run all checks; do not stop at a failure (NHC_CHECK_ALL=1)
 -c <conffile>     Load config from <conffile> (default: <confdir>/<name>.conf)
 -d                Debugging output (DEBUG=1)
 -e <check>        Evaluate the check line <check> and exit; marks no node
 -f                Run shell checks in forked subprocesses (NHC_CHECK_FORKED=1)
 -l <logspec>      Log to a file or redirections; -: none (LOGFILE=<logspec>)
 -n <name>         Set program name to <name> (default: nhc); see -D and -c
 -q                Run quietly (SILENT=1)
 -t <timeout>      Time limit of the run in seconds (default: 30; 0: no limit)
 -v                Run verbosely (VERBOSE=1)
 -x                Let bash trace shell lines (set -x)

 All other arguments must be settings of the form VARNAME=value.
%s
EXAMPLES:
---------
 To run in debug mode with a timeout of 60 seconds:
    # %s -d -t 60
  OR
    # %s DEBUG=1 TIMEOUT=60

 To run with the name "nhc-cron", which changes the default config paths:
    # %s -n nhc-cron
  OR
    # %s NAME=nhc-cron

`

const ownSyntax = `           nhc-gpu <command> [<arguments>]

 nhc-gpu checks whether this node can accept, or keep, a job. Without a command
 it is a drop-in replacement for LBNL Node Health Check: it runs the checks,
 also with -v alone, drains the node if one fails, and resumes it when all
 pass.
`

// Refuse prints an error in the command line of nhc-gpu, and the command that shows the help.
func Refuse(command string, err error) {
	fmt.Fprintf(console.Alerts, "nhc-gpu: %v\n", err)
	shows := "its options"
	if command == OwnName {
		shows = "all options and commands"
	}
	fmt.Fprintf(console.Alerts, "%s --help shows %s\n", command, shows)
}

// CommandHelp returns the help of a command.
func CommandHelp(cmd *cobra.Command) string {
	var b strings.Builder
	wrap := func(text string) string { return console.Wrap(text, console.HelpWidth) }
	fmt.Fprintf(&b, "%s\n\n%s\nUsage:\n%s", cmd.Short, wrap(strings.TrimSpace(cmd.Long)), wrap("  "+cmd.UseLine()))
	if cmd.HasExample() {
		fmt.Fprintf(&b, "\nExamples:\n%s\n", cmd.Example)
	}
	title := "\nCommands:\n"
	for _, sub := range cmd.Commands() {
		if sub.Hidden {
			continue
		}
		b.WriteString(title)
		title = ""
		fmt.Fprintf(&b, "  %-12s %s\n", sub.Name(), sub.Short)
	}
	if cmd.HasAvailableLocalFlags() {
		fmt.Fprintf(&b, "\nOptions:\n%s", cmd.LocalFlags().FlagUsagesWrapped(console.HelpWidth))
	}
	return b.String()
}

// OwnHelp is the part of the help that only nhc-gpu has.
const OwnHelp = `
 EXIT STATUS of a health check: 0 all pass; 3 a result is unknown and none is a
 failure; 10 wrong arguments; 142 TIMEOUT; other: that of the failed check,
 with -a the number of failures.

 COMMAND           DESCRIPTION (nhc-gpu <command> --help has more)
-------------------------------------------------------------------------------
 --check           Run all checks and print what they find, failures first,
                   with the action for each. The node is not drained, and
                   actions of checks (kill, mount, mkdir, restart, -e, -E) are
                   only listed. Shell lines, and commands whose output a check
                   reads, are run. Does not stop at the first failure.
                   Exit status: 0 ok, 1 warn, 2 fail, 3 unknown
                   Options of --check, in any order:
   --act           Carry out the actions of the checks
   --failed        Print only the rows that are not ok
   -q              Print only failures and unknown results, nothing else
   --no-shell      Skip shell lines; their results are unknown
   --json          Print one object of JSON
   --format FORMAT
                   Print as text, json, jsonl, nagios, npd, junit, prometheus
   --redact        Remove serial numbers and UUIDs
 --baseline[=RUNS] Run the active tests (5 times) and record what this node
                   reaches as its baseline; --baseline=0 shows the baseline
 --prolog          Run as Slurm's Prolog: before the job of SLURM_JOB_ID
 --epilog          Run as its Epilog
 checks [GROUP]    List the built-in checks
 explain WORD      Explain a check, code, message, reason, Xid or counter
 check NAME [ARGS] Run one check and print its findings; drains nothing
 plan              Show how each line of the configuration is interpreted
 lint              List errors in the configuration, and conflicts with Slurm's
 genconf           Write a configuration that passes on this node (nhc-genconf)
 wrap              Run a check and print or mail the changes (nhc-wrapper)
 platforms [NAME]  List known GPU platforms and the source of each figure
 topo              Show the PCIe and NUMA topology of GPUs, adapters and disks
 cabling           Write the list of switch ports from ibnetdiscover -p
 selftest          Show that GPU and fabric checks detect one faulty device
 drill CODE        Rehearse a fault: the next runs see it, and drain the node
 xid explain CODE  Explain Xid codes and how they are classified
 status            Show the last run, who holds the node, and why
 history           Show what changed on this node, and when
 report [FILE]     Write an HTML page about the runs of a node or a fleet
 replay            Show what other policies would have done
 bundle [FILE]     Write the evidence about this node into an archive
 job [ID]          Show what happened on this node while a job ran
 monitor           Run the checks that an event concerns, as it happens
 sweep             Find the slow or faulty node, port or cable of a cluster
 clear             Acknowledge GPU or port errors so that the node can return
 remedy            Repair this node as far as nhc.toml permits
 silence CODE      Accept a known fault of this node until a date
 accept CODE       Accept the present state until the hardware changes
 rma DEVICE        Print what a vendor asks for to replace a device
 completion SHELL  Print a completion script for bash, zsh, fish or powershell
 version           Print the version, as --version does
 help [COMMAND]    Show this help, as -h and --help do, or that of a command
`
