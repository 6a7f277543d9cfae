// Package setting holds the settings of a run: the shell variables from the environment, the
// command line and the site's files.
package setting

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"mvdan.cc/sh/v3/syntax"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/jobscan"
	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
	"github.com/nhc-gpu/nhc-gpu/conf"
)

// Settings holds the shell variables of a run, as bash would have them.
type Settings struct {
	Vars         map[string]string
	Export       map[string]bool
	Arrays       map[string][]string
	site         []string           // the names that Put has set
	helpers      bool               // the site sets the helpers or their directory
	LostHelper   string             // the helper that HELPERDIR of the site does not have; "": none
	Profiles     []byte             // the site's platform profiles
	ProfilesFrom string             // the file that contains them
	WantedGPUs   int                // see checks.Env.WantedGPUs
	Slurm        *jobscan.SlurmGPUs // this node's GPUs in Slurm's configuration; nil: unknown
	Past, Spare  string             // directories where checks keep data between runs; "": none
	Job          *checks.Job        // the job of a prolog or an epilog
	Periodic     bool               // slurmd started the run as its health check
	Part         bool               // the monitor started the run
	Learn        bool               // active tests run to measure the node's baseline
	DryRun       bool               // no check carries out an action
	likeLBNL     bool               // the program is called as LBNL NHC
}

// NoAction is the value of SHELL that keeps LBNL NHC's checks from carrying out actions.
const NoAction = ":"

// WrongChoices returns the errors of settings that accept only a few values.
func (s *Settings) WrongChoices() (err error) {
	for _, name := range conf.Chosen {
		err = errors.Join(err, conf.WrongChoice(name, s.Get(name)))
	}
	for _, name := range OwnVars {
		if value := s.Get(name); Glued(name, value) != "" {
			err = errors.Join(err, fmt.Errorf("%s=%s: two settings in one word: write each on a line of its own", name, value))
		}
	}
	return err
}

// Glued returns the second of two settings that stand in one word, "" if there is only one:
// NHC_CHECK_ALL=1MODE=observe.
func Glued(name, value string) string {
	for _, second := range append([]string{"MARK_OFFLINE", "NHC_RM"}, OwnVars...) {
		if at := strings.Index(value, second+"="); at > 0 && slices.Contains(OwnVars, name) && !strings.ContainsAny(value, " \t") {
			return value[at:]
		}
	}
	return ""
}

// Choose applies the settings of nhc.toml. A setting of the command line or of the sysconfig file
// overrides it.
func (s *Settings) Choose(c *conf.Config) {
	if c == nil {
		return
	}
	for name, value := range c.Chosen {
		if s.Get(name) == "" {
			s.Put(name, value, true)
		}
	}
}

// Observes reports whether the run only logs its decisions.
func (s *Settings) Observes() bool { return s.Get(conf.SettingMode) == conf.Observe }

// ConfigErrorsDrain reports whether an error in the configuration fails the check, as in LBNL
// NHC.
func (s *Settings) ConfigErrorsDrain() bool {
	v := s.Get(conf.SettingConfigErrors)
	return v == conf.DrainConfigErrors || v == "" && s.likeLBNL
}

// FixedPath is the PATH of every program that a run starts.
const FixedPath = probe.CommandPath

// OwnVars are the settings that a run ignores in the environment: it unsets them at the start, as
// LBNL NHC does.
var OwnVars = []string{
	"NAME", "CONFDIR", "CONFFILE", "INCDIR", "HELPERDIR", "ONLINE_NODE", "OFFLINE_NODE", "LOGFILE", "DEBUG", "SILENT", "VERBOSE",
	"TIMEOUT", "RESULTFILE", "MAX_SYS_UID", "NHC_RM", "NHC_CHECK_ALL", "NHC_CHECK_FORKED", "EVAL_LINE",
	conf.SettingMode, conf.SettingConfigErrors,
	"HOSTROOT", "PLATFORM_PROFILES", "TOMLFILE", // ours: they select the inspected node and the expected values
	probe.SettingNVML, probe.SettingCUDA, probe.SettingNCCL, probe.SettingCUBLASLt, probe.SettingDCGM, probe.SettingLibraryDirs, // they select libraries for a process of root
}

// hostile reports whether a variable changes the code that root's programs load or run, or makes
// bash give up a function or a read.
func hostile(name string) bool {
	switch name {
	case "BASH_ENV", "ENV", "SHELLOPTS", "BASHOPTS", "PS4", "GLOBIGNORE", "CDPATH", "IFS", "FUNCNEST", "TMOUT", "GODEBUG", "GOTRACEBACK", "GOGC", "GOMEMLIMIT":
		return true
	}
	return strings.HasPrefix(name, "LD_") || strings.HasPrefix(name, "BASH_FUNC_") || strings.HasPrefix(name, "NHC_GPU_")
}

// steers reports whether a variable with Slurm's prefix is one of LBNL NHC's, which selects the
// command to run.
func steers(name string) bool {
	return name == "SLURM_SCONTROL" || name == "SLURM_RECHECK" || strings.HasPrefix(name, "SLURM_SC_") || strings.HasPrefix(name, "SLURM_SINFO")
}

// New reads the settings from the environment. Around a job it uses only the variables that Slurm
// sets: the job's user can set the others.
func New(environ []string, aroundJob bool) *Settings {
	s := &Settings{Vars: map[string]string{}, Export: map[string]bool{}, Arrays: map[string][]string{}}
	for _, e := range environ {
		name, value, ok := strings.Cut(e, "=")
		switch {
		case !ok || hostile(name) || slices.Contains(OwnVars, name):
		case aroundJob && (!strings.HasPrefix(name, "SLURM") && name != "CUDA_VISIBLE_DEVICES" || steers(name)):
		default:
			s.Vars[name], s.Export[name] = value, true
		}
	}
	s.Vars["PATH"], s.Export["PATH"] = FixedPath, true
	host, err := os.Hostname()
	if err != nil {
		host = ""
	}
	short, _, _ := strings.Cut(host, ".")
	s.Vars["HOSTNAME"], s.Vars["HOSTNAME_S"] = host, short
	s.Distribution(sysconfigDir)
	for _, n := range []string{"HOSTNAME", "HOSTNAME_S", "SYSCONFIGDIR", "LIBEXECDIR"} {
		s.Export[n] = true
	}
	if dir, err := unix.Getwd(); err == nil { //nolint:forbidigo // getcwd(2) queries no file system; os.Getwd would
		s.Vars["PWD"] = dir
	}
	s.Put("RET", "0", true)
	s.Put("FAIL_CNT", "0", true)
	s.Put("FORCE_SETSID", "1", true)
	return s
}

// Signs are the paths that [Settings.Distribution] looks for: the first that exists decides.
var Signs = []string{debianVersion, sysconfigDir, defaultDir}

const (
	debianVersion = "/etc/debian_version"
	sysconfigDir  = "/etc/sysconfig"
	defaultDir    = "/etc/default"
)

// Distribution sets the directories that differ between distributions, as LBNL NHC does. first is
// the first path of Signs that exists, "" if none does.
func (s *Settings) Distribution(first string) {
	s.Vars["SYSCONFIGDIR"], s.Vars["LIBEXECDIR"] = "/etc/nhc/sysconfig", "/usr/libexec"
	switch first {
	case debianVersion:
		s.Vars["SYSCONFIGDIR"], s.Vars["LIBEXECDIR"] = defaultDir, "/usr/lib"
	case sysconfigDir, defaultDir:
		s.Vars["SYSCONFIGDIR"] = first
	}
}

// Get returns the value of a variable, "" for none.
func (s *Settings) Get(name string) string { return s.Vars[name] }

// Lookup returns the value of a variable, and whether it is set.
func (s *Settings) Lookup(name string) (string, bool) {
	v, ok := s.Vars[name]
	return v, ok
}

// Put sets a variable.
func (s *Settings) Put(name, value string, export bool) {
	s.Vars[name] = value
	s.site = append(s.site, name)
	if export {
		s.Export[name] = true
	}
	switch name {
	case "HELPERDIR", "OFFLINE_NODE", "ONLINE_NODE":
		s.helpers = s.helpers || value != ""
	}
}

// Word evaluates one VAR=value argument of the command line.
func (s *Settings) Word(w string) error {
	name, value, array, isArray, export, err := conf.ParseAssign(w, s.Get)
	if err != nil {
		return err
	}
	if isArray {
		s.Arrays[name] = array
		delete(s.Vars, name)
		return nil
	}
	s.Put(name, value, export)
	return nil
}

// Assign evaluates the assignments of a sysconfig file.
func (s *Settings) Assign(list []conf.Assign) {
	for _, a := range list {
		switch {
		case a.Unset:
			delete(s.Vars, a.Name)
			delete(s.Arrays, a.Name)
			delete(s.Export, a.Name)
		case a.IsArray:
			s.Arrays[a.Name] = a.Array
		default:
			s.Put(a.Name, a.Value, a.Export)
		}
	}
}

// Preset sets the variables that the sysconfig file can refer to or replace.
func (s *Settings) Preset(argv0 string) {
	const lbnl = "nhc"
	s.likeLBNL = s.Get("NAME") == lbnl || filepath.Base(argv0) == lbnl
	if s.Get("NAME") == "" {
		name := filepath.Base(argv0)
		if strings.HasPrefix(name, "nhc-gpu") { // nhc-gpu.new, too
			name = lbnl
		}
		s.Put("NAME", name, true)
	}
}

// helperFiles has the helpers of LBNL NHC below HELPERDIR, by their settings.
var helperFiles = map[string]string{"OFFLINE_NODE": "/node-mark-offline", "ONLINE_NODE": "/node-mark-online"}

// Finalize sets every empty setting to its default.
func (s *Settings) Finalize() {
	def := func(name, value string) {
		if s.Vars[name] == "" {
			s.Vars[name] = value
		}
	}
	def("CONFDIR", "/etc/nhc")
	def("CONFFILE", s.Vars["CONFDIR"]+"/"+s.Vars["NAME"]+".conf")
	def("INCDIR", s.Vars["CONFDIR"]+"/scripts")
	def("HELPERDIR", s.Vars["LIBEXECDIR"]+"/nhc")
	for name, file := range helperFiles {
		def(name, s.Vars["HELPERDIR"]+file)
	}
	def("LOGFILE", ">>/var/log/"+s.Vars["NAME"]+".log 2>&1")
	def("RESULTFILE", ResultDir+"/"+s.Vars["NAME"]+".status")
	def("DEBUG", "0")
	def("TS", s.Vars["DEBUG"])
	if s.Stamps() {
		s.Vars["TS"] = strconv.FormatInt(time.Now().Unix(), 10)
	}
	def("MARK_OFFLINE", "1")
	def("TIMEOUT", "30")
	def("PASSWD_DATA_SRC", "/etc/passwd")
	for name, value := range checks.Variables() {
		if value != "" {
			def(name, value)
		}
	}
	for _, n := range []string{"SILENT", "VERBOSE", "DETACHED_MODE", "DETACHED_MODE_FAIL_NODATA", "NHC_CHECK_ALL", "NHC_CHECK_FORKED"} {
		def(n, "0")
	}
	for _, n := range []string{
		"NAME", "CONFDIR", "CONFFILE", "INCDIR", "HELPERDIR", "ONLINE_NODE", "OFFLINE_NODE", "LOGFILE", "DEBUG", "TS",
		"SILENT", "TIMEOUT", "NHC_RM",
	} {
		s.Export[n] = true
	}
}

// Timeout returns TIMEOUT. Any value except a positive whole number disables it (0).
func (s *Settings) Timeout() time.Duration {
	n, err := strconv.Atoi(strings.TrimSpace(s.Get("TIMEOUT")))
	if err != nil || n <= 0 {
		return 0
	}
	return time.Duration(n) * time.Second
}

// Stamps reports whether lines need a time stamp: TS is a number other than 0.
func (s *Settings) Stamps() bool {
	n, err := strconv.Atoi(strings.TrimSpace(s.Get("TS")))
	return err == nil && n != 0
}

// Marks reports whether the run marks the node, by LBNL's rule: MARK_OFFLINE is the number 1.
func (s *Settings) Marks() bool {
	n, err := strconv.Atoi(strings.TrimSpace(s.Get("MARK_OFFLINE")))
	return err == nil && n == 1 && s.Get("NHC_RM") != ""
}

// Array returns the value of an array. A plain variable is an array with one element.
func (s *Settings) Array(name string) []string {
	if a, ok := s.Arrays[name]; ok {
		return a
	}
	if v := s.Vars[name]; v != "" {
		return []string{v}
	}
	return nil
}

// WorkerVars returns the variables and the environment for checks.
func (s *Settings) WorkerVars() wire.Vars {
	v := wire.Vars{Plain: s.Vars, Arrays: s.Arrays, Environ: s.Environ(), Root: s.Get("HOSTROOT"), Past: s.Past, Spare: s.Spare, Slurm: s.Slurm, WantedGPUs: s.WantedGPUs, Job: s.Job, Learn: s.Learn, Period: s.Periodic, Part: s.Part, DryRun: s.DryRun || s.Observes() || s.Get("SHELL") == NoAction}
	if len(s.Profiles) > 0 {
		v.ProfilesFile, v.Profiles = s.ProfilesFrom, s.Profiles
	}
	return v
}

// Environ returns the environment of workers and commands.
func (s *Settings) Environ() []string {
	var env []string
	for _, n := range slices.Sorted(maps.Keys(s.Export)) {
		if v, ok := s.Vars[n]; ok {
			env = append(env, n+"="+v)
		}
	}
	return env
}

// SiteExports returns the exported variables that the site's files or the command line have set. None is
// from the environment, which a job's user can choose.
func (s *Settings) SiteExports() []string {
	return slices.DeleteFunc(s.Environ(), func(e string) bool {
		name, _, _ := strings.Cut(e, "=")
		return !slices.Contains(s.site, name)
	})
}

// ShellText returns bash code that sets all variables.
func (s *Settings) ShellText() string {
	var b strings.Builder
	for _, n := range slices.Sorted(maps.Keys(s.Vars)) {
		if ReadonlyInBash[n] || !syntax.ValidName(n) {
			continue
		}
		if s.Export[n] {
			b.WriteString("export ")
		}
		b.WriteString(n + "=" + Quote(s.Vars[n]) + "\n")
	}
	for _, n := range slices.Sorted(maps.Keys(s.Arrays)) {
		b.WriteString(n + "=(")
		for _, v := range s.Arrays[n] {
			b.WriteString(" " + Quote(v))
		}
		b.WriteString(" )\n")
	}
	return b.String()
}

// ReadonlyInBash holds the variables that cannot be set in bash.
var ReadonlyInBash = map[string]bool{"UID": true, "EUID": true, "PPID": true, "BASHOPTS": true, "SHELLOPTS": true, "BASH_VERSINFO": true, "_": true, "SHLVL": true, "PWD": true, "OLDPWD": true}

// Quote returns s as one word of bash code.
func Quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// CustomHelper reports whether the site has a helper of its own that marks the node. Otherwise
// nhc-gpu marks it.
func (s *Settings) CustomHelper(name string) bool {
	return s.helpers || s.Get(name) != s.Get("HELPERDIR")+helperFiles[name]
}

// HelpersToFind returns the helpers that the site's HELPERDIR must have, none if the site has none or names both.
func (s *Settings) HelpersToFind() (paths []string) {
	if !s.helpers {
		return nil
	}
	for name, file := range helperFiles {
		path := s.Get("HELPERDIR") + file
		if s.Get(name) != path {
			return nil
		}
		paths = append(paths, path)
	}
	slices.Sort(paths)
	return paths
}

// LoseHelpers lets nhc-gpu mark the node, as without HELPERDIR: path does not exist. A package of LBNL NHC that
// was replaced leaves such a setting behind.
func (s *Settings) LoseHelpers(path string) { s.helpers, s.LostHelper = false, path }

// ProfilesFile returns the path of the site's platform profiles.
func (s *Settings) ProfilesFile() string {
	if named := s.Get("PLATFORM_PROFILES"); named != "" {
		return named
	}
	return s.Get("CONFDIR") + "/profiles.toml"
}

// ResultDir is the directory of results. It is created if missing: /run is empty after each boot.
const ResultDir = "/var/run/nhc"

// MarkNothing prevents the run from marking the node.
func (s *Settings) MarkNothing() {
	s.Vars["ONLINE_NODE"], s.Vars["OFFLINE_NODE"], s.Vars["MARK_OFFLINE"] = ":", ":", "0"
}
