package main

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/run"
	"github.com/nhc-gpu/nhc-gpu/conf"
)

// settings are the shell variables of a run: what bash would see, were there one.
type settings struct {
	vars         map[string]string
	export       map[string]bool
	arrays       map[string][]string
	helpers      bool             // the site names the helpers, or the directory they are in
	profiles     []byte           // the site's profiles of platforms
	profilesFrom string           // the file they were read from
	wantedGPUs   int              // see checks.Env.WantedGPUs
	slurm        *probe.SlurmGPUs // what Slurm's configuration says of this node; nil: nobody has asked, or it does not tell
	past, spare  string           // where checks keep what they need to know of earlier runs; "": nowhere
	job          *checks.Job      // of a prolog or an epilog
	periodic     bool             // slurmd has started the run, as its health check
	learn        bool             // active tests are run to learn what the node reaches
	hold         bool             // no check carries out an action
}

// noAction is the value of SHELL with which LBNL NHC's checks carry out no action.
const noAction = ":"

// fixedPath is the PATH of everything that is started.
const fixedPath = "/sbin:/usr/sbin:/bin:/usr/bin"

// ownVars are the settings that the environment must not bring in: they are
// unset at the start, as in LBNL NHC.
var ownVars = []string{
	"CONFDIR", "CONFFILE", "INCDIR", "HELPERDIR", "ONLINE_NODE", "OFFLINE_NODE", "LOGFILE", "DEBUG", "SILENT", "VERBOSE",
	"TIMEOUT", "RESULTFILE", "MAX_SYS_UID", "NHC_RM", "NHC_CHECK_ALL", "NHC_CHECK_FORKED", "EVAL_LINE",
	"HOSTROOT", "PLATFORM_PROFILES", "TOMLFILE", // ours: what is looked at, what is expected
	probe.SettingNVML, probe.SettingCUDA, probe.SettingNCCL, probe.SettingCUBLASLt, probe.SettingDCGM, probe.SettingLibraryDirs, // what is loaded into a process of root's
}

// hostile are variables that change what programs started by root load or run,
// and those by which bash gives up on a function or on a read.
func hostile(name string) bool {
	switch name {
	case "BASH_ENV", "ENV", "SHELLOPTS", "BASHOPTS", "PS4", "GLOBIGNORE", "CDPATH", "IFS", "FUNCNEST", "TMOUT", "GODEBUG", "GOTRACEBACK", "GOGC", "GOMEMLIMIT":
		return true
	}
	return strings.HasPrefix(name, "LD_") || strings.HasPrefix(name, "BASH_FUNC_") || strings.HasPrefix(name, "NHC_GPU_")
}

// steers says whether a variable of Slurm's name is one of LBNL NHC's, which says
// what is run.
func steers(name string) bool {
	return name == "SLURM_SCONTROL" || name == "SLURM_RECHECK" || strings.HasPrefix(name, "SLURM_SC_") || strings.HasPrefix(name, "SLURM_SINFO")
}

// newSettings starts from the environment. Around a job only what Slurm itself
// sets is taken: the rest may be the job's.
func newSettings(environ []string, aroundJob bool) *settings {
	s := &settings{vars: map[string]string{}, export: map[string]bool{}, arrays: map[string][]string{}}
	for _, e := range environ {
		name, value, ok := strings.Cut(e, "=")
		switch {
		case !ok || hostile(name) || slices.Contains(ownVars, name):
		case aroundJob && (!strings.HasPrefix(name, "SLURM") && name != "CUDA_VISIBLE_DEVICES" || steers(name)):
		default:
			s.vars[name], s.export[name] = value, true
		}
	}
	s.vars["PATH"], s.export["PATH"] = fixedPath, true
	host, err := os.Hostname()
	if err != nil {
		host = ""
	}
	short, _, _ := strings.Cut(host, ".")
	s.vars["HOSTNAME"], s.vars["HOSTNAME_S"] = host, short
	s.distribution(false)
	for _, n := range []string{"HOSTNAME", "HOSTNAME_S", "SYSCONFIGDIR", "LIBEXECDIR"} {
		s.export[n] = true
	}
	if dir, err := unix.Getwd(); err == nil { //nolint:forbidigo // getcwd(2) asks no file system; os.Getwd would
		s.vars["PWD"] = dir
	}
	s.put("RET", "0", true)
	s.put("FAIL_CNT", "0", true)
	s.put("FORCE_SETSID", "1", true)
	return s
}

// distribution sets the directories in which distributions differ.
func (s *settings) distribution(debian bool) {
	s.vars["SYSCONFIGDIR"], s.vars["LIBEXECDIR"] = "/etc/sysconfig", "/usr/libexec"
	if debian {
		s.vars["SYSCONFIGDIR"], s.vars["LIBEXECDIR"] = "/etc/default", "/usr/lib"
	}
}

func (s *settings) get(name string) string { return s.vars[name] }

func (s *settings) lookup(name string) (string, bool) {
	v, ok := s.vars[name]
	return v, ok
}

func (s *settings) put(name, value string, export bool) {
	s.vars[name] = value
	if export {
		s.export[name] = true
	}
	switch name {
	case "HELPERDIR", "OFFLINE_NODE", "ONLINE_NODE":
		s.helpers = s.helpers || value != ""
	}
}

// word carries out one VAR=value word of the command line.
func (s *settings) word(w string) error {
	name, value, array, isArray, export, err := conf.ParseAssign(w, s.get)
	if err != nil {
		return err
	}
	if isArray {
		s.arrays[name] = array
		delete(s.vars, name)
		return nil
	}
	s.put(name, value, export)
	return nil
}

// assign carries out what a sysconfig file says.
func (s *settings) assign(list []conf.Assign) {
	for _, a := range list {
		switch {
		case a.Unset:
			delete(s.vars, a.Name)
			delete(s.arrays, a.Name)
			delete(s.export, a.Name)
		case a.IsArray:
			s.arrays[a.Name] = a.Array
		default:
			s.put(a.Name, a.Value, a.Export)
		}
	}
}

// preset fills in what the sysconfig file may refer to or replace.
func (s *settings) preset(argv0 string) {
	if s.get("NAME") == "" {
		name := filepath.Base(argv0)
		if name == "nhc-gpu" {
			name = "nhc"
		}
		s.put("NAME", name, true)
	}
}

// finalize gives every setting that is still empty its default.
func (s *settings) finalize() {
	def := func(name, value string) {
		if s.vars[name] == "" {
			s.vars[name] = value
		}
	}
	def("CONFDIR", "/etc/nhc")
	def("CONFFILE", s.vars["CONFDIR"]+"/"+s.vars["NAME"]+".conf")
	def("INCDIR", s.vars["CONFDIR"]+"/scripts")
	def("HELPERDIR", s.vars["LIBEXECDIR"]+"/nhc")
	def("ONLINE_NODE", s.vars["HELPERDIR"]+"/node-mark-online")
	def("OFFLINE_NODE", s.vars["HELPERDIR"]+"/node-mark-offline")
	def("LOGFILE", ">>/var/log/"+s.vars["NAME"]+".log 2>&1")
	def("RESULTFILE", defaultResultDir+"/"+s.vars["NAME"]+".status")
	def("DEBUG", "0")
	def("TS", s.vars["DEBUG"])
	if s.stamps() {
		s.vars["TS"] = strconv.FormatInt(time.Now().Unix(), 10)
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
		s.export[n] = true
	}
}

// timeout is TIMEOUT; what is no positive whole number means none.
func (s *settings) timeout() time.Duration {
	n, err := strconv.Atoi(strings.TrimSpace(s.get("TIMEOUT")))
	if err != nil || n <= 0 {
		return 0
	}
	return time.Duration(n) * time.Second
}

// stamps says whether lines are to have a time stamp: a number other than 0.
func (s *settings) stamps() bool {
	n, err := strconv.Atoi(strings.TrimSpace(s.get("TS")))
	return err == nil && n != 0
}

// marks says whether the node is to be marked, by LBNL's rule: the number 1.
func (s *settings) marks() bool {
	n, err := strconv.Atoi(strings.TrimSpace(s.get("MARK_OFFLINE")))
	return err == nil && n == 1 && s.get("NHC_RM") != ""
}

// array is the value of an array. A plain variable is one with one element.
func (s *settings) array(name string) []string {
	if a, ok := s.arrays[name]; ok {
		return a
	}
	if v := s.vars[name]; v != "" {
		return []string{v}
	}
	return nil
}

// workerVars are the variables and the environment that checks are to see.
func (s *settings) workerVars() run.Vars {
	v := run.Vars{Plain: s.vars, Arrays: s.arrays, Environ: s.environ(), Root: s.get("HOSTROOT"), Past: s.past, Spare: s.spare, Slurm: run.Only[probe.SlurmGPUs]{Value: s.slurm}, WantedGPUs: s.wantedGPUs, Job: run.Only[checks.Job]{Value: s.job}, Learn: s.learn, Period: s.periodic, Hold: s.hold || s.get("SHELL") == noAction}
	if len(s.profiles) > 0 {
		v.ProfilesFile, v.Profiles = s.profilesFrom, s.profiles
	}
	return v
}

// environ is the environment of workers and commands.
func (s *settings) environ() []string {
	var env []string
	for _, n := range slices.Sorted(maps.Keys(s.export)) {
		if v, ok := s.vars[n]; ok {
			env = append(env, n+"="+v)
		}
	}
	return env
}

// shellText is the bash text that sets all variables.
func (s *settings) shellText() string {
	var b strings.Builder
	for _, n := range slices.Sorted(maps.Keys(s.vars)) {
		if readonlyInBash[n] || !isName(n) {
			continue
		}
		if s.export[n] {
			b.WriteString("export ")
		}
		b.WriteString(n + "=" + quote(s.vars[n]) + "\n")
	}
	for _, n := range slices.Sorted(maps.Keys(s.arrays)) {
		b.WriteString(n + "=(")
		for _, v := range s.arrays[n] {
			b.WriteString(" " + quote(v))
		}
		b.WriteString(" )\n")
	}
	return b.String()
}

var readonlyInBash = map[string]bool{"UID": true, "EUID": true, "PPID": true, "BASHOPTS": true, "SHELLOPTS": true, "BASH_VERSINFO": true, "_": true, "SHLVL": true, "PWD": true, "OLDPWD": true}

func isName(n string) bool {
	for i, c := range n {
		if c != '_' && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z') && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return n != ""
}

// quote makes one word of bash text.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
