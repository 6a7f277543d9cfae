package probe

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// dcgmi, NVIDIA's own program, where there is no library to be loaded: nodes with
// DCGM 3, whose library go-dcgm does not know, and those whose library is elsewhere.

// dcgmiEngine asks dcgmi.
type dcgmiEngine struct {
	host    *Host
	address string
	doing   func(string)
	gpus    []DCGMGPU
}

// dcgmiAnswer is how long dcgmi may take, but for a diagnostic.
const dcgmiAnswer = 8 * time.Second

// dcgmiOutput is how much of dcgmi's output is kept, bytes: JSON of a diagnostic of
// 16 GPUs is some 100 KiB.
const dcgmiOutput = 8 << 20

// dcgmi finds the program. The error says why the library is not used.
func (h *Host) dcgmi(s DCGMSettings, why error, doing func(string)) (DCGMEngine, error) {
	doing("look for dcgmi")
	if _, err := h.find([]string{"dcgmi"}, ""); err != nil {
		if why == nil {
			why = fmt.Errorf("run dcgmi: %w", ErrNoLibrary)
		}
		return nil, why
	}
	var environ []string
	for _, v := range h.environment(nil) {
		if !leadsDCGM(v) {
			environ = append(environ, v)
		}
	}
	return &dcgmiEngine{host: &Host{root: h.root, environ: environ, cache: map[string]any{}}, address: s.Address, doing: doing}, nil
}

// leadsDCGM says whether a variable of the environment would lead DCGM to other
// programs, or to fewer GPUs.
func leadsDCGM(variable string) bool {
	for _, prefix := range []string{"CUDA_", "NVVS_", "DCGM_", "__DCGM_", "NVML_", "NCCL_", "NVIDIA_"} {
		if strings.HasPrefix(variable, prefix) {
			return true
		}
	}
	return false
}

func (e *dcgmiEngine) Via() string { return "dcgmi" }
func (e *dcgmiEngine) Close()      {}

// run runs dcgmi and gives what it has printed; what was not found out is an error.
// Exit statuses are dcgmReturn_t in one byte: 226 is -30, a diagnostic that has found
// something (DCGM#158).
func (e *dcgmiEngine) run(ctx context.Context, limit time.Duration, words ...string) (Exit, error) {
	argv := append([]string{"dcgmi"}, words...)
	if e.address != "" {
		argv = append(argv, "--host", e.address)
	}
	e.doing("run " + strings.Join(argv, " "))
	x := e.host.Run(ctx, Command{Argv: argv, Timeout: limit, Output: dcgmiOutput, Errors: 4 << 10,
		Signals: []unix.Signal{unix.SIGTERM}, Grace: dcgmiGrace})
	call := strings.Join(argv[:2], " ")
	switch {
	case x.Err != nil:
		return x, &DCGMError{Call: call, Text: x.Err.Error()}
	case x.TimedOut && ctx.Err() != nil:
		return x, fmt.Errorf("%s: stopped: %w", call, context.Cause(ctx))
	case x.TimedOut:
		return x, &DCGMHungError{Doing: call, For: limit}
	}
	return x, nil
}

// dcgmiGrace is how long dcgmi may take to tell the engine that a diagnostic is over.
const dcgmiGrace = 3 * time.Second

// said is what dcgmi has printed in place of an answer.
func (e *dcgmiEngine) said(call string, x Exit) error {
	text := strings.TrimSpace(string(x.Output) + "\n" + string(x.Errors))
	line, _, _ := strings.Cut(text, "\n")
	switch {
	case strings.Contains(text, "unable to establish a connection"), strings.Contains(text, "Unable to connect to host engine"):
		return fmt.Errorf("%s: %w", call, ErrNoEngine)
	case line == "":
		line = "it said nothing"
	}
	code := 0
	if x.Status > 128 && x.Status < 256 {
		code = x.Status - 256
	}
	return &DCGMError{Call: call, Code: code, Text: fmt.Sprintf("%s (status %d)", oneLine(line), x.Status)}
}

var dcgmiLine = lazily(`^\|\s*(\d*)\s*\|\s*(Name|PCI Bus ID|Device UUID):\s*(\S.*?)\s*\|$`)

// GPUs reads the table of "dcgmi discovery -l", which has no JSON.
func (e *dcgmiEngine) GPUs(ctx context.Context) ([]DCGMGPU, error) {
	if e.gpus != nil {
		return e.gpus, nil
	}
	x, err := e.run(ctx, dcgmiAnswer, "discovery", "-l")
	if err != nil {
		return nil, err
	}
	gpus := parseDiscovery(x.Output)
	if len(gpus) == 0 && (x.Status != 0 || !bytes.Contains(x.Output, []byte(" GPUs found"))) {
		return nil, e.said("dcgmi discovery", x)
	}
	e.gpus = gpus
	return gpus, nil
}

func parseDiscovery(table []byte) (gpus []DCGMGPU) {
	for line := range bytes.Lines(table) {
		m := dcgmiLine().FindSubmatch(bytes.TrimSpace(line))
		if m == nil {
			continue
		}
		if id, err := strconv.Atoi(string(m[1])); err == nil {
			gpus = append(gpus, DCGMGPU{ID: id})
		}
		if len(gpus) == 0 {
			continue
		}
		switch g := &gpus[len(gpus)-1]; string(m[2]) {
		case "PCI Bus ID":
			g.PCI = pciOf(string(m[3]))
		case "Device UUID":
			g.UUID = oneLine(string(m[3]))
		}
	}
	return gpus
}

// Health asks the watches that somebody has set; dcgmi would leave its own behind.
func (e *dcgmiEngine) Health(ctx context.Context, systems DCGMSystem) (*DCGMHealth, error) {
	x, err := e.run(ctx, dcgmiAnswer, "health", "-c", "-j")
	if err != nil {
		return nil, err
	}
	if bytes.Contains(x.Output, []byte("Health watches not enabled")) {
		return nil, ErrNoWatches
	}
	health, err := parseDCGMIHealth(x.Output, systems)
	if err != nil {
		return nil, errors.Join(e.said("dcgmi health", x), err)
	}
	return health, nil
}

// ErrNoWatches says that the engine watches nothing.
var ErrNoWatches = errors.New("its health watches are off")

// Diag runs dcgmi, which stops the diagnostic when it is told to end.
func (e *dcgmiEngine) Diag(ctx context.Context, r DCGMDiagRequest) ([]DCGMResult, error) {
	words := []string{"diag", "-r", strconv.Itoa(r.Level), "-j"}
	var ids []string
	for _, id := range r.GPUs {
		ids = append(ids, strconv.Itoa(id))
	}
	if len(ids) > 0 {
		words = append(words, "-i", strings.Join(ids, ","))
	}
	if p := notAllowed(r.Exclude); len(p) > 0 {
		words = append(words, "-p", strings.Join(p, ";"))
	}
	x, err := e.run(ctx, r.Timeout+dcgmDiagMore, words...)
	if err != nil {
		return nil, err
	}
	results, said, err := parseDCGMIDiag(x.Output)
	switch {
	case err != nil:
		return nil, errors.Join(e.said("dcgmi diag", x), err)
	case said != "":
		return results, diagRefusal(said, x.Status)
	}
	return results, nil
}

// diagRefusal is the error of a diagnostic that was not run, or not to its end. Of
// the status only one that stands for a dcgmReturn_t is taken.
func diagRefusal(said string, status int) error {
	e := &DCGMError{Call: "dcgmi diag", Text: oneLine(said)}
	if status > 128 && status < 256 {
		e.Code = status - 256
	}
	return e
}
