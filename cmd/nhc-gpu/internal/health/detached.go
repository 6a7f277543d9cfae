package health

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/run"
	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
	"github.com/nhc-gpu/nhc-gpu/checks/session"
	"github.com/nhc-gpu/nhc-gpu/checks/session/judge"
	"github.com/nhc-gpu/nhc-gpu/checks/session/open"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/console"
)

// Detached mode: the run that slurmd starts reports the result of the last run, and starts the
// next one in the background. That one leaves its result in RESULTFILE: "STATUS MESSAGE" of its
// first failure, "0" if all checks pass.

// DetachedSuffix after the program's name makes a run the background half. It is no environment
// variable, since the environment of a prolog or an epilog belongs to the job.
const DetachedSuffix = "-detached"

// detach is the foreground half. over is false if this run is not one: detached mode is off, or
// this is the background half.
func (r *Run) detach() (exit int, over bool) {
	if from := r.Set.Get("NHC_DETACHED"); from != "" {
		r.Background = true
	}
	if r.Background {
		r.Set.Put("DETACHED_MODE", "1", r.Set.Export["DETACHED_MODE"])
		r.Debug("This session is running detached from %s.", r.Set.Get("NHC_DETACHED"))
		return 0, false
	}
	if n, err := strconv.Atoi(strings.TrimSpace(r.Set.Get("DETACHED_MODE"))); err != nil || n != 1 || r.Set.Get("NHC_RM") == "sge" {
		return 0, false
	}
	r.Debug("Activating detached mode.")
	r.rememberLanes(nil) // this half needs no worker
	path := r.Set.Get("RESULTFILE")
	o := r.Pool.Call(r.Ctx, checks.Local, &wire.Request{Op: wire.OpTake, Path: path, Line: "read " + path}, judge.TakeLimit)
	file, err := o.File("read " + path)
	switch {
	case err != nil:
		return r.refuse(err), true
	case file.Stays:
		return r.stuckResult(path), true
	}
	res := r.lastResult(path, file)
	r.LetNextRun()
	argv := append([]string{r.argv[0] + DetachedSuffix}, r.argv[1:]...)
	err = run.Detach(argv, append(os.Environ(), "NHC_DETACHED="+strconv.Itoa(os.Getpid())))
	switch {
	case res.status != "0":
		if err != nil { // the result can be read only once
			r.Warn(err)
		}
		return r.reportResult(res), true
	case err != nil:
		return r.refuse(err), true
	}
	return r.detachedWell()
}

// result is the content of a result file.
type result struct{ status, message string }

// lastResult returns the result of the last run.
func (r *Run) lastResult(path string, f run.File) result {
	if !f.Missing {
		if err := open.Trusted(path, &f.FileInfo); err != nil {
			r.Warn(fmt.Errorf("%w: its result is not used", err))
			f.Missing = true
		}
	}
	switch {
	case !f.Missing && f.Mode.IsRegular():
		return parseResult(string(f.Data))
	case r.Set.Get("DETACHED_MODE_FAIL_NODATA") == "1":
		return result{"1", "Detached mode -- pending checks (no data found)"}
	}
	return result{status: "0"}
}

// parseResult splits the first line of a result file as "read RC MSG" of bash does: a backslash
// escapes the character that follows it.
func parseResult(data string) result {
	var line strings.Builder
	for i := 0; i < len(data) && data[i] != '\n'; i++ {
		if data[i] == '\\' {
			if i++; i >= len(data) || data[i] == '\n' {
				continue
			}
		}
		line.WriteByte(data[i])
	}
	text := strings.Trim(line.String(), " \t")
	at := strings.IndexAny(text, " \t")
	if at < 0 {
		return result{status: text}
	}
	return result{text[:at], strings.TrimLeft(text[at:], " \t")}
}

// reportResult prints the result of the last run in LBNL NHC's form.
func (r *Run) reportResult(res result) int {
	if res.status == judge.UnknownResult {
		fmt.Fprintf(console.Stdout, "ERROR Health check unknown:  %s\n", res.message)
		return r.unknown()
	}
	fmt.Fprintf(console.Stdout, "ERROR Health check failed:  %s\n", res.message)
	if res.status == "" {
		return 0 // bash's "exit" without a number
	}
	n, err := strconv.ParseInt(res.status, 10, 64)
	if err != nil {
		fmt.Fprintf(console.Stderr, "nhc-gpu: %s: status %q is not a number\n", r.Set.Get("RESULTFILE"), res.status)
		return 2
	}
	return int(n & 0xff)
}

// stuckResult fails the run: while the file cannot be removed, every result would be old.
func (r *Run) stuckResult(path string) int {
	if r.Set.Get("NHC_RM") == "" {
		find := r.ManagerRequest()
		r.UseManager(find, r.Pool.Call(r.Ctx, checks.Local, find, session.Reading))
	}
	r.Judge.Abort(1, fmt.Sprintf("Unable to overwrite/remove results file %q -- is %s read-only?", path, filepath.Dir(path)))
	return 1
}

// detachedWell ends the foreground half after a good run.
func (r *Run) detachedWell() (exit int, over bool) {
	spec, err := r.Log.Parse(r.Set)
	if err != nil {
		exit, _ := r.Log.Fail(r.Set, spec, err)
		return exit, true
	}
	for _, q := range r.Log.OpenRequests() {
		o := r.Pool.Call(r.Ctx, checks.Local, q, session.Reading)
		if err := o.FailureIn(q.Line); err != nil {
			exit, _ := r.Log.Fail(r.Set, spec, err)
			return exit, true
		}
	}
	if r.Set.Get("VERBOSE") == "1" {
		took := int(time.Since(r.Budget.Began).Seconds())
		r.Log.Write(r.Stamped(fmt.Sprintf("Node Health Check detached parent completed successfully (%ds).", took)))
		r.Log.Flush()
	}
	return 0, true
}
