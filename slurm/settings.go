package slurm

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"mvdan.cc/sh/v3/shell"
)

// Settings are a site's values for our calls to Slurm. They have the names and
// the meaning of those in LBNL NHC's helpers. Each is a part of a command line, split into words as
// a shell does ("-o '%t %E' -hn" is three words).
type Settings struct {
	Scontrol    string // SLURM_SCONTROL: scontrol
	OfflineArgs string // SLURM_SC_OFFLINE_ARGS: update State=DRAIN
	OnlineArgs  string // SLURM_SC_ONLINE_ARGS: update State=RESUME

	// Sinfo and SinfoArgs are SLURM_SINFO (sinfo) and SLURM_SINFO_ARGS
	// (-o '%t %E' -hn). If one of them is set, the node is queried with them. Otherwise sinfo
	// is asked for every flag of the state: slurmctld then answers for one node, while scontrol
	// show node loads all nodes of the cluster. scontrol is used if there is no sinfo, or if
	// sinfo does not show the node (one in no partition, or FUTURE).
	Sinfo     string
	SinfoArgs string

	Recheck time.Duration // SLURM_RECHECK, in seconds: how long an unchanged answer is valid

	Path   string // PATH, search path of the commands; empty: the fixed one
	Conf   string // SLURM_CONF; empty: Slurm's default
	Policy Policy // IGNORE_EMPTY_NOTE is 1

	Exports []string // NAME=value: variables that the site's files export
}

// SettingsFrom reads the settings with env. An empty variable has its
// default.
func SettingsFrom(env func(string) string) Settings {
	return Settings{
		Scontrol:    env("SLURM_SCONTROL"),
		OfflineArgs: env("SLURM_SC_OFFLINE_ARGS"),
		OnlineArgs:  env("SLURM_SC_ONLINE_ARGS"),
		Sinfo:       env("SLURM_SINFO"),
		SinfoArgs:   env("SLURM_SINFO_ARGS"),
		Recheck:     recheckFrom(env("SLURM_RECHECK")),
		Path:        env("PATH"),
		Conf:        env("SLURM_CONF"),
		Policy: Policy{
			IgnoreEmptyNote: env("IGNORE_EMPTY_NOTE") == "1",
			Fails:           strings.Contains(strings.ToUpper(env("SLURM_SC_OFFLINE_ARGS")), "STATE=FAIL"),
		},
	}
}

// recheckFrom parses a number of seconds; any other text gives the default.
func recheckFrom(text string) time.Duration {
	if n, err := ParseRecheck(text); err == nil {
		return n
	}
	return DefaultRecheck
}

// ParseRecheck parses SLURM_RECHECK.
func ParseRecheck(text string) (time.Duration, error) {
	n, err := strconv.ParseUint(text, 10, 31)
	if err != nil {
		return 0, fmt.Errorf("SLURM_RECHECK=%s: want a number of seconds, such as 1800", text)
	}
	return time.Duration(n) * time.Second, nil
}

// bySinfo reports whether the site configures the sinfo call.
func (s Settings) bySinfo() bool { return s.Sinfo != "" || s.SinfoArgs != "" }

// The columns that sinfo prints. It truncates longer text; our reasons fit.
const (
	stateColumn  = 200
	authorColumn = 60
	reasonColumn = 2 * MaxReason
)

// command returns a command of Slurm that nhc-gpu runs by itself. If the site names its scontrol by a
// path, the others are expected in the same directory.
func (s Settings) command(name string) string {
	if words, err := argv([]string{s.Scontrol}); err == nil && len(words) > 0 && filepath.IsAbs(words[0]) {
		return filepath.Join(filepath.Dir(words[0]), name)
	}
	return name
}

// sinfo returns the sinfo that asks for one node: one that the site names can be a wrapper for the health check.
func (s Settings) sinfo() string { return s.command("sinfo") }

// sinfoOf returns the sinfo command for all nodes, with the sinfo that the site names.
func (s Settings) sinfoOf(rest ...string) ([]string, error) {
	return argv([]string{cmp.Or(s.Sinfo, s.sinfo())}, rest...)
}

// scontrol returns the command of scontrol with arguments.
func (s Settings) scontrol(rest ...string) ([]string, error) {
	return argv([]string{cmp.Or(s.Scontrol, "scontrol")}, rest...)
}

// nodeArgv returns the sinfo command for one node.
func (s Settings) nodeArgv(node string) ([]string, error) {
	format := fmt.Sprintf("StateComplete:%d,User:%d,Reason:%d", stateColumn, authorColumn, reasonColumn)
	return []string{s.sinfo(), "-h", "-N", "-n", node, "-O", format}, nil
}

// groupsArgv returns the command whose output parseGroups reads: all nodes in one request, a line for
// each partition, state and reason. The reason is last, because it may contain anything.
func (s Settings) groupsArgv(string) ([]string, error) {
	return s.sinfoOf("-h", "-a", "-o", "%R|%t|%D|%N|%E")
}

// nodeCommentArgv returns the sinfo command for the comment of one node.
func (s Settings) nodeCommentArgv(node string) ([]string, error) {
	return []string{s.sinfo(), "-h", "-N", "-n", node, "-O", fmt.Sprintf("Comment:%d", commentColumn)}, nil
}

func (s Settings) setNodeCommentArgv(node, text string) ([]string, error) {
	return s.scontrol("update", "NodeName="+node, "Comment="+text)
}

func (s Settings) sinfoArgv(node string) ([]string, error) {
	return argv([]string{cmp.Or(s.Sinfo, "sinfo"), cmp.Or(s.SinfoArgs, "-o '%t %E' -hn")}, node)
}

func (s Settings) showArgv(node string) ([]string, error) {
	return s.scontrol("-o", "show", "node", node)
}

func (s Settings) configArgv() ([]string, error) {
	return s.scontrol("show", "config")
}

func (s Settings) jobArgv(job string) ([]string, error) {
	return s.scontrol("show", "job", job)
}

func (s Settings) commentArgv(job, text string) ([]string, error) {
	return s.scontrol("update", "JobId="+job, "AdminComment="+text)
}

// updateArgv returns the command for a decision. The reason is one argument, whatever it
// contains.
func (s Settings) updateArgv(node string, d Decision) ([]string, error) {
	if d.Action == Resume {
		return argv([]string{cmp.Or(s.Scontrol, "scontrol"), cmp.Or(s.OnlineArgs, "update State=RESUME")}, "NodeName="+node)
	}
	return argv([]string{cmp.Or(s.Scontrol, "scontrol"), cmp.Or(s.OfflineArgs, "update State=DRAIN")}, "NodeName="+node, "Reason="+d.Reason)
}

// environ returns the complete environment of a call. slurmd sets none of it, and the variables of a
// user's shell must not change the answer (SLURM_TIME_FORMAT would). With fed_display in slurm.conf
// the commands would ask each cluster of the federation, and print its nodes of the same name first.
// Without a path the commands are found as with probe.CommandPath.
func (s Settings) environ() []string {
	env := []string{"PATH=" + cmp.Or(s.Path, "/sbin:/usr/sbin:/bin:/usr/bin"), "LC_ALL=C", "SINFO_LOCAL=1", "SQUEUE_LOCAL=1", "SCONTROL_LOCAL=1"}
	if s.Conf != "" {
		env = append(env, "SLURM_CONF="+s.Conf)
	}
	for _, e := range s.Exports {
		if name, _, _ := strings.Cut(e, "="); isForCommands(name) {
			env = append(env, e)
		}
	}
	return env
}

// isForCommands reports whether Slurm's commands get a variable that the site exports, as they do from LBNL
// NHC's helpers: the libraries of Slurm or munge, SLURM_JWT, SLURM_CONF_SERVER and others, but none that
// changes what the commands print (man sinfo, scontrol: ENVIRONMENT VARIABLES).
func isForCommands(name string) bool {
	switch name {
	case "SLURM_CONF", "SLURM_TIME_FORMAT", "SLURM_CLUSTERS", "SLURM_BITSTR_LEN":
		return false
	}
	return name == "LD_LIBRARY_PATH" || strings.HasPrefix(name, "SLURM_")
}

// argv splits the pieces into words and appends the rest unchanged.
func argv(pieces []string, rest ...string) ([]string, error) {
	var words []string
	for _, p := range pieces {
		w, err := shell.Fields(p, func(string) string { return "" })
		if err != nil {
			return nil, fmt.Errorf("split %q: %w", p, err)
		}
		words = append(words, w...)
	}
	return slices.Concat(words, rest), nil
}
