package hostengine

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// This file runs dcgmi, NVIDIA's own program, if no library can be loaded: on nodes with DCGM 3,
// which go-dcgm does not support, or with the library in another place.

// dcgmiEngine queries DCGM by dcgmi.
type dcgmiEngine struct {
	host    *probe.Host
	address string
	doing   func(string)
	gpus    []GPU
}

// dcgmiAnswer is the time limit of dcgmi, except for a diagnostic.
const dcgmiAnswer = 8 * time.Second

// dcgmiOutput bounds the stored output of dcgmi, bytes: the JSON of a diagnostic of 16 GPUs has
// some 100 KiB.
const dcgmiOutput = 8 << 20

// findDCGMI finds the program. why explains why the library is not used.
func findDCGMI(h *probe.Host, s Settings, why error, doing func(string)) (Engine, error) {
	doing("look for dcgmi")
	if _, err := probe.FindProgram(h, []string{"dcgmi"}, ""); err != nil {
		if why == nil {
			why = fmt.Errorf("run dcgmi: %w", probe.ErrNoLibrary)
		}
		return nil, why
	}
	var environ []string
	for _, v := range probe.Environment(h) {
		if !leadsDCGM(v) {
			environ = append(environ, v)
		}
	}
	own := h.Apart()
	own.SetEnviron(environ)
	return &dcgmiEngine{host: own, address: s.Address, doing: doing}, nil
}

// leadsDCGM reports whether a variable of the environment would make DCGM use other programs or
// fewer GPUs.
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

// run runs dcgmi and returns its output. If DCGM has no result, it returns an error. Exit statuses
// are dcgmReturn_t in one byte: 226 is -30, a diagnostic that has found an error (DCGM#158).
func (e *dcgmiEngine) run(ctx context.Context, limit time.Duration, words ...string) (probe.Exit, error) {
	argv := append([]string{"dcgmi"}, words...)
	if e.address != "" {
		argv = append(argv, "--host", e.address)
	}
	e.doing("run " + strings.Join(argv, " "))
	x := e.host.Run(ctx, probe.Command{Argv: argv, Timeout: limit, Output: dcgmiOutput, Errors: 4 << 10,
		Signals: []unix.Signal{unix.SIGTERM}, Grace: dcgmiGrace})
	call := strings.Join(argv[:2], " ")
	switch {
	case x.Err != nil:
		return x, &Error{Call: call, Text: x.Err.Error()}
	case x.TimedOut && ctx.Err() != nil:
		return x, fmt.Errorf("%s: stopped: %w", call, context.Cause(ctx))
	case x.TimedOut:
		return x, &HungError{Doing: call, For: limit}
	}
	return x, nil
}

// dcgmiGrace is the time that dcgmi gets to make the engine stop a diagnostic.
const dcgmiGrace = 3 * time.Second

// parseError returns the error that dcgmi printed instead of an answer.
func (e *dcgmiEngine) parseError(call string, x probe.Exit) error {
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
	return &Error{Call: call, Code: code, Text: fmt.Sprintf("%s (status %d)", probe.OneLine(line), x.Status)}
}

var dcgmiLine = probe.Lazily(`^\|\s*(\d*)\s*\|\s*(Name|PCI Bus ID|Device UUID):\s*(\S.*?)\s*\|$`)

// GPUs parses the table of "dcgmi discovery -l", which has no JSON.
func (e *dcgmiEngine) GPUs(ctx context.Context) ([]GPU, error) {
	if e.gpus != nil {
		return e.gpus, nil
	}
	x, err := e.run(ctx, dcgmiAnswer, "discovery", "-l")
	if err != nil {
		return nil, err
	}
	gpus := parseDiscovery(x.Output)
	if len(gpus) == 0 && (x.Status != 0 || !bytes.Contains(x.Output, []byte(" GPUs found"))) {
		return nil, e.parseError("dcgmi discovery", x)
	}
	e.gpus = gpus
	return gpus, nil
}

func parseDiscovery(table []byte) (gpus []GPU) {
	for line := range bytes.Lines(table) {
		m := dcgmiLine().FindSubmatch(bytes.TrimSpace(line))
		if m == nil {
			continue
		}
		if id, err := strconv.Atoi(string(m[1])); err == nil {
			gpus = append(gpus, GPU{ID: id})
		}
		if len(gpus) == 0 {
			continue
		}
		switch g := &gpus[len(gpus)-1]; string(m[2]) {
		case "PCI Bus ID":
			g.PCI = normalizeAddress(string(m[3]))
		case "Device UUID":
			g.UUID = probe.OneLine(string(m[3]))
		}
	}
	return gpus
}

// Health reads only watches that a user has set, since dcgmi cannot remove its own.
func (e *dcgmiEngine) Health(ctx context.Context, systems System) (*Health, error) {
	x, err := e.run(ctx, dcgmiAnswer, "health", "-c", "-j")
	if err != nil {
		return nil, err
	}
	if bytes.Contains(x.Output, []byte("Health watches not enabled")) {
		return nil, ErrNoWatches
	}
	health, err := parseDCGMIHealth(x.Output, systems)
	if err != nil {
		return nil, errors.Join(e.parseError("dcgmi health", x), err)
	}
	return health, nil
}

// ErrNoWatches means that the engine watches nothing.
var ErrNoWatches = errors.New("its health watches are off")

// Diag runs dcgmi, which stops the diagnostic when it gets a signal.
func (e *dcgmiEngine) Diag(ctx context.Context, r DiagRequest) ([]Result, error) {
	words := []string{"diag", "-r", strconv.Itoa(r.Level), "-j"}
	var ids []string
	for _, id := range r.GPUs {
		ids = append(ids, strconv.Itoa(id))
	}
	if len(ids) > 0 {
		words = append(words, "-i", strings.Join(ids, ","))
	}
	if p := skipParameters(r.Exclude); len(p) > 0 {
		words = append(words, "-p", strings.Join(p, ";"))
	}
	x, err := e.run(ctx, r.Timeout+dcgmDiagMore, words...)
	if err != nil {
		return nil, err
	}
	results, said, err := parseDCGMIDiag(x.Output)
	switch {
	case err != nil:
		return nil, errors.Join(e.parseError("dcgmi diag", x), err)
	case said != "":
		return results, parseRefusal(said, x.Status)
	}
	return results, nil
}

// parseRefusal returns the error of a diagnostic that did not run, or did not finish. It uses only a
// status that corresponds to a dcgmReturn_t.
func parseRefusal(said string, status int) error {
	e := &Error{Call: "dcgmi diag", Text: probe.OneLine(said)}
	if status > 128 && status < 256 {
		e.Code = status - 256
	}
	return e
}

// These types match dcgmi's output with -j. The names are those of NvvsJsonStrings.h, Diag.cpp and
// DcgmiOutput.cpp of DCGM's sources: 3.0 to 3.3 ("DCGM GPU Diagnostic", a result for each GPU with
// gpu_id or gpu_ids), 4.0 and later ("DCGM Diagnostic", entities).

// dcgmiDiag matches both versions.
type dcgmiDiag struct {
	V3      *dcgmiTests `json:"DCGM GPU Diagnostic"`
	V4      *dcgmiTests `json:"DCGM Diagnostic"`
	Runtime string      `json:"runtime_error"`
}

type dcgmiTests struct {
	Runtime    string `json:"runtime_error"`
	Warning    string `json:"Warning"`
	Categories []struct {
		Tests []*dcgmiTest `json:"tests"` // some may be null
	} `json:"test_categories"`
}

type dcgmiTest struct {
	Name    string        `json:"name"`
	Results []dcgmiResult `json:"results"`
	Summary *dcgmiResult  `json:"test_summary"`
}

type dcgmiResult struct {
	Kind     string          `json:"entity_group"`
	ID       *int            `json:"entity_id"`
	GPU      json.RawMessage `json:"gpu_id"`  // "0", or 0
	GPUs     json.RawMessage `json:"gpu_ids"` // "0,1,2,3"
	Status   string          `json:"status"`
	Warnings json.RawMessage `json:"warnings"` // objects, texts, or one of them
}

// parseDCGMIDiag parses the JSON of a diagnostic; text may precede it. said explains why the
// diagnostic did not run, or did not finish.
func parseDCGMIDiag(output []byte) (results []Result, said string, err error) {
	var d dcgmiDiag
	if err := decodeFrom(output, &d); err != nil {
		return nil, "", err
	}
	t := d.V4
	if t == nil {
		t = d.V3
	}
	if t == nil {
		if d.Runtime != "" {
			return nil, d.Runtime, nil
		}
		return nil, "", fmt.Errorf("read dcgmi's JSON: %q is missing", "DCGM Diagnostic")
	}
	for _, c := range t.Categories {
		for _, test := range c.Tests {
			if test != nil {
				results = append(results, test.results()...)
			}
		}
	}
	said = t.Runtime
	if said == "" {
		said = t.Warning
	}
	return results, said, nil
}

// decodeFrom decodes JSON after any preceding text.
func decodeFrom(output []byte, v any) error {
	at := bytes.IndexByte(output, '{')
	if at < 0 {
		return fmt.Errorf("read dcgmi's JSON: its output has none")
	}
	err := json.NewDecoder(bytes.NewReader(output[at:])).Decode(v)
	if e, ok := errors.AsType[*json.UnmarshalTypeError](err); ok { // its own text has names of Go
		err = fmt.Errorf("%q is an unexpected %s", e.Field, e.Value)
	}
	if err != nil {
		return fmt.Errorf("read dcgmi's JSON: %w", err)
	}
	return nil
}

func (t *dcgmiTest) results() (list []Result) {
	name := convertTestName(t.Name)
	for _, r := range t.Results {
		for _, entity := range r.entities() {
			list = append(list, Result{Test: name, Entity: entity, Status: convertStatus(r.Status), Notes: parseNotes(r.Warnings)})
		}
	}
	if s := t.Summary; s != nil {
		if notes := parseNotes(s.Warnings); len(notes) > 0 || len(list) == 0 && s.Status != "" {
			list = append(list, Result{Test: name, Status: convertStatus(s.Status), Notes: notes})
		}
	}
	return list
}

// convertTestName converts the name of a test to that of DCGM 4: version 3 prints "Memory Bandwidth",
// and the parts of "software" as separate tests, which keep their names.
func convertTestName(name string) string {
	switch low := strings.ReplaceAll(strings.ToLower(probe.OneLine(name)), " ", "_"); low {
	case "gpu_memory":
		return "memory"
	case "diagnostic", "pcie", "memory_bandwidth", "targeted_stress", "targeted_power", "sm_stress", "memtest", "pulse_test", "eud_test", "context_create":
		return low
	}
	return probe.OneLine(name)
}

// entities returns the entities of a result. A result of DCGM 3 for no GPU or several belongs to
// the node: the deployment tests run only once.
func (r *dcgmiResult) entities() []Entity {
	if r.Kind != "" && r.ID != nil {
		return []Entity{{Kind: strings.ToLower(r.Kind), ID: *r.ID}}
	}
	for _, raw := range []json.RawMessage{r.GPU, r.GPUs} {
		if id, err := strconv.Atoi(strings.Trim(string(raw), `" `)); err == nil {
			return []Entity{{Kind: "gpu", ID: id}}
		}
	}
	return []Entity{{}}
}

func convertStatus(status string) string {
	switch s := strings.ToLower(strings.Join(strings.Fields(status), " ")); s {
	case "pass", "passed":
		return DCGMPass
	case "fail", "failed":
		return DCGMFail
	case "warn", "warning":
		return DCGMWarn
	case "skip", "skipped":
		return DCGMSkip
	case "not run", "notrun", "":
		return DCGMNotRun
	default:
		return probe.OneLine(s)
	}
}

// parseNotes returns the errors of a result: DCGM 3.3 and 4 print objects with the text in
// "warning" or "warnings", older versions print texts.
func parseNotes(raw json.RawMessage) (notes []Note) {
	type object struct {
		Code     *int   `json:"error_id"`
		Warning  string `json:"warning"`
		Warnings string `json:"warnings"`
	}
	var list []json.RawMessage
	if json.Unmarshal(raw, &list) != nil && len(raw) > 0 {
		list = []json.RawMessage{raw}
	}
	for _, item := range list {
		var o object
		var text string
		switch {
		case string(item) == "null":
			continue
		case json.Unmarshal(item, &text) == nil:
			notes = append(notes, Note{Code: -1, Message: probe.OneLine(text)})
		case json.Unmarshal(item, &o) == nil:
			n := Note{Code: -1, Message: probe.OneLine(o.Warning + o.Warnings)}
			if o.Code != nil {
				n.Code = *o.Code
			}
			notes = append(notes, n)
		default:
			notes = append(notes, Note{Code: -1, Message: probe.OneLine(string(item))})
		}
	}
	return notes
}

// dcgmiBox is a part of the output tree of "dcgmi health -c -j".
type dcgmiBox struct {
	Value    string               `json:"value"`
	Overflow []string             `json:"overflow"`
	Children map[string]*dcgmiBox `json:"children"`
}

// dcgmiSystems has the systems by their names in that tree: Health.cpp.
var dcgmiSystems = map[string]System{
	"PCIe system": DCGMPCIe, "NVLINK system": DCGMNVLink, "PMU system": DCGMPMU, "MCU system": DCGMMCU, "Memory system": DCGMMemory,
	"SM system": DCGMSM, "InfoROM system": DCGMInfoROM, "Thermal system": DCGMThermal, "Power system": DCGMPower, "Driver": DCGMDriver,
	"NVSwitch non-fatal system": DCGMSwitchNonFatal, "NVSwitch fatal system": DCGMSwitchFatal, "ConnectX system": DCGMConnectX, "IMEX system": DCGMIMEX,
}

// parseDCGMIHealth parses the JSON of the health watches: kind of entity, its index, "Errors", the
// system. It has texts, and no codes.
func parseDCGMIHealth(output []byte, systems System) (*Health, error) {
	var tree struct {
		Body map[string]*dcgmiBox `json:"body"`
	}
	if err := decodeFrom(output, &tree); err != nil {
		return nil, err
	}
	overall := tree.Body["Overall Health"]
	if overall == nil {
		return nil, fmt.Errorf("read dcgmi's JSON: %q is missing", "Overall Health")
	}
	health := &Health{}
	for _, kind := range slices.Sorted(maps.Keys(tree.Body)) {
		health.Incidents = append(health.Incidents, tree.Body[kind].incidents(kind, systems)...)
	}
	if overall.Value != "Healthy" && len(health.Incidents) == 0 && systems == DCGMAll {
		health.Incidents = []Incident{{Failed: overall.Value == "Failure", Code: -1, Message: "overall health: " + probe.OneLine(overall.Value)}}
	}
	return health, nil
}

func (b *dcgmiBox) incidents(kind string, systems System) (list []Incident) {
	if b == nil {
		return nil
	}
	for _, number := range slices.Sorted(maps.Keys(b.Children)) {
		id, err := strconv.Atoi(number)
		thing := b.Children[number]
		if err != nil || thing == nil || thing.Children["Errors"] == nil {
			continue
		}
		found := thing.Children["Errors"].Children
		for _, name := range slices.Sorted(maps.Keys(found)) {
			s := dcgmiSystems[name]
			if found[name] == nil || s != 0 && s&systems == 0 {
				continue
			}
			text := strings.Join(found[name].Overflow, " ")
			if text == "" {
				text = found[name].Value
			}
			list = append(list, Incident{Entity: Entity{Kind: strings.ToLower(kind), ID: id}, System: s, Failed: found[name].Value == "Failure",
				Code: -1, Message: probe.OneLine(text)})
		}
	}
	return list
}
