package hostengine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// diagnose returns the results of a diagnostic, one per line.
func diagnose(ctx context.Context, h *probe.Host, s Settings, r DiagRequest) string {
	e, err := Connect(ctx, h, s, nil)
	if err != nil {
		return err.Error()
	}
	defer e.Close()
	results, err := e.Diag(ctx, r)
	return dcgmResultsText(results, err)
}

func dcgmResultsText(results []Result, err error) string {
	var lines []string
	for _, r := range results {
		text := fmt.Sprintf("%s %s%d %s", r.Test, r.Entity.Kind, r.Entity.ID, r.Status)
		for _, n := range r.Notes {
			text += fmt.Sprintf("; %d %s", n.Code, n.Message)
		}
		lines = append(lines, text)
	}
	if err != nil {
		lines = append(lines, "error: "+err.Error())
	}
	return strings.Join(lines, "\n")
}

func TestDCGMDiag(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name  string
		lines []string
		want  string
	}{
		{"pass", []string{"result software 1 0 0", "result memory 1 0 0", "result pcie 1 0 1"}, "software gpu0 pass\nmemory gpu0 pass\npcie gpu0 skip"},
		{"fail of one", []string{"result memory 1 0 0", "result memory 1 3 3", "note memory 1 3 58 A memory mismatch was detected"},
			"memory gpu0 pass\nmemory gpu3 fail; 58 A memory mismatch was detected"},
		{"passes with an error", []string{"result memory 1 3 0", "note memory 1 3 56 Couldn't allocate at least 75.0% of GPU memory"},
			"memory gpu3 pass; 56 Couldn't allocate at least 75.0% of GPU memory"},
		{"an error of no GPU", []string{"result memory 1 3 0", "note memory 0 0 64 API call failed"}, "memory gpu3 pass\nmemory 0 pass; 64 API call failed"},
		{"an error of a thing without a result", []string{"result memory 1 3 3", "note memory 3 1 58 a switch"}, "memory gpu3 fail\nmemory switch1 fail; 58 a switch"},
		{"an error of no test", []string{"note - 0 0 44 There was an internal error"}, " 0 fail; 44 There was an internal error"},
		{"returns an error with results", []string{"result pcie 1 3 3", "note pcie 1 3 30 slow", "error dcgmActionValidate_v2 -30"},
			"pcie gpu3 fail; 30 slow\nerror: dcgmActionValidate_v2: GPU Diagnostic returned an error. (DCGM error -30)"},
		{"not run", []string{"result pcie 1 3 4", "result memory 1 3 9"}, "pcie gpu3 not run\nmemory gpu3 result 9"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			calls := inDCGMProcess(t, test.lines, test.want, func(h *probe.Host, address string) string {
				return diagnose(context.Background(), h, standaloneAt(address),
					DiagRequest{Level: 2, GPUs: []int{0, 3}, Exclude: []string{"software", "nvbandwidth"}, Timeout: time.Minute})
			})
			if want := "diag level=2 entities=0,3 group=0x7ffffffa timeout=60 parms=nvbandwidth.is_allowed=false,"; !slices.Contains(calls, want) {
				t.Errorf("calls %q, want %q", calls, want)
			}
		})
	}
}

func TestDCGMDiagErrors(t *testing.T) {
	t.Parallel()
	for code, want := range map[int]error{-39: ErrRunning, -12: ErrTooOld} {
		t.Run(fmt.Sprint(code), func(t *testing.T) {
			t.Parallel()
			inDCGMProcess(t, []string{fmt.Sprintf("error dcgmActionValidate_v2 %d", code)}, "true", func(h *probe.Host, address string) string {
				e, err := Connect(context.Background(), h, standaloneAt(address), nil)
				if err == nil {
					_, err = e.Diag(context.Background(), DiagRequest{Level: 1, Timeout: time.Minute})
				}
				return fmt.Sprint(errors.Is(err, want))
			})
		})
	}
}

// Whatever the library's counts are, nothing outside its answer is read.
func TestDCGMDiagGarbage(t *testing.T) {
	t.Parallel()
	inDCGMProcess(t, []string{"garbage"}, "done", func(h *probe.Host, address string) string {
		diagnose(context.Background(), h, standaloneAt(address), DiagRequest{Level: 1, Timeout: time.Minute})
		return "done"
	})
}

// A diagnostic that is interrupted does not continue: the engine gets a request to stop it.
func TestDCGMDiagIsStopped(t *testing.T) {
	t.Parallel()
	for name, s := range map[string]Settings{"standalone": {Mode: "standalone"}, "embedded": {Mode: "embedded"}} {
		for how, end := range map[string]func(cancel func()){
			"context": func(cancel func()) { cancel() },
			"SIGTERM": func(func()) { _ = unix.Kill(os.Getpid(), unix.SIGTERM) },
		} {
			t.Run(name+" "+how, func(t *testing.T) {
				t.Parallel()
				want := map[string]string{"context": "error: stopped: context canceled", "SIGTERM": "error: stopped: the run was ended"}[how]
				calls := inDCGMProcess(t, []string{"seconds 30"}, want, func(h *probe.Host, address string) string {
					ctx, cancel := context.WithCancel(context.Background())
					time.AfterFunc(500*time.Millisecond, func() { end(cancel) })
					s.Address = address
					return diagnose(ctx, h, s, DiagRequest{Level: 3, Timeout: time.Minute})
				})
				if !slices.Contains(calls, "dcgmStopDiagnostic") {
					t.Errorf("calls %q, want dcgmStopDiagnostic", calls)
				}
			})
		}
	}
}
