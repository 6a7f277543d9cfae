package ask

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/event"
	"github.com/nhc-gpu/nhc-gpu/checks/plan"
	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
	"github.com/nhc-gpu/nhc-gpu/checks/session"
	"github.com/nhc-gpu/nhc-gpu/checks/session/outputs"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/console"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/health"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/options"
	"github.com/nhc-gpu/nhc-gpu/conf/spell"
)

// RMA describes a device for the vendor that replaces it.
func RMA() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "rma DEVICE",
		Short: "Print what a vendor asks for to replace a device",
		Long: `Prints the identity, the place and the errors of a GPU, an adapter or an NVMe disk:
serial, part and board numbers, versions of VBIOS, InfoROM, firmware and driver, the
machine, slot and NVLink neighbours, its errors of the last 30 days with times, the
archives of evidence, and what you must add. For a GPU that no longer answers it
takes the serial number from the records of earlier runs, and says so. It asks NVML;
if the driver does not answer, the rest is printed. Needs root.
  DEVICE   gpu3, mlx5_2, nvme1, a PCI address, a UUID or a serial number. gpu3 is
           the GPU that had this name in the last message

Exit status: 0, 10 if there is no such device, or not root.`,
		Example: `  nhc-gpu rma gpu3
  nhc-gpu rma --json 0000:c1:00.0`,
		Args: cobra.ArbitraryArgs,
		ValidArgsFunction: func(_ *cobra.Command, words []string, _ string) ([]string, cobra.ShellCompDirective) {
			return firstOf(words, partNames())
		},
		RunE: func(_ *cobra.Command, words []string) error { return printPart(words, asJSON) },
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one object of JSON")
	return cmd
}

// partNames returns what a shell completes: the devices of the node, each with its address.
func partNames() (names []string) {
	r, _, err := xidRun(nil)
	if err != nil {
		return nil
	}
	defer r.Close()
	r.Pool.SetVars(r.Set.WorkerVars())
	present, _ := r.Parts() // none if they cannot be read
	for _, d := range present {
		names = append(names, cmp.Or(d.Name, d.PCI)+"\t"+d.PCI)
	}
	return names
}

func printPart(words []string, asJSON bool) error {
	r, words, err := xidRun(words)
	if err != nil {
		return err
	}
	defer r.Close()
	switch {
	case len(words) == 0:
		return options.Wrong{Err: errors.New("missing argument: want a DEVICE (gpu3, mlx5_2, nvme1, a PCI address, a UUID or a serial number)")}
	case len(words) > 1:
		return options.Wrong{Err: fmt.Errorf("surplus argument %q: want one DEVICE", words[1])}
	case r.Bad != nil:
		return r.Bad
	case r.Set.Past == "":
		return errors.New("rma: only root can read serial numbers and the history")
	}
	p, err := findPart(r, words[0], time.Now())
	if err != nil {
		return fmt.Errorf("rma %s: %w", words[0], err)
	}
	if asJSON {
		e := json.NewEncoder(os.Stdout)
		e.SetEscapeHTML(false)
		return e.Encode(p)
	}
	writePart(console.Screen, p)
	return nil
}

// findPart collects everything about the device that a word names.
func findPart(r *health.Run, word string, now time.Time) (*checks.Part, error) {
	r.Pool.SetVars(r.Set.WorkerVars())
	last, err := outputs.Last(r.Node)
	if err != nil {
		r.Warn(err)
	}
	past, err := outputs.History(r.Node, now)
	if err != nil {
		r.Warn(err)
	}
	present, err := r.Parts()
	if err != nil {
		r.Warn(err)
	}
	known, before, err := r.PastParts()
	if err != nil {
		r.Warn(err)
	}
	slices.Reverse(past)
	events := append(last, past...)
	d, err := resolvePart(word, present, append(known, before...), events)
	if err != nil {
		return nil, err
	}
	p, err := askPart(r, checks.Local, d, session.Reading)
	if err != nil {
		r.Warn(err)
		p = &checks.Part{Device: d, State: "unknown: " + err.Error(), Location: checks.Location{NUMA: -1}}
	}
	if d.Kind == "gpu" {
		limit := plan.StepTimeout(checks.Info{Lane: checks.NVML}, nil, r.Set.Timeout())
		answer, err := askPart(r, checks.NVML, d, limit)
		if err != nil {
			p.State += "; NVML: " + err.Error()
		} else {
			addAnswer(p, answer)
		}
	}
	fromRecords(p, d, known, before, events)
	p.Node, p.Time = r.Name, now.UTC().Truncate(time.Second)
	addErrors(p, past)
	p.Add = toAdd(p)
	return p, nil
}

// askPart has a worker describe a device.
func askPart(r *health.Run, lane checks.Lane, d checks.Device, limit time.Duration) (*checks.Part, error) {
	data, err := json.Marshal(d)
	if err != nil {
		return nil, fmt.Errorf("describe %s: %w", d, err)
	}
	q := &wire.Request{Op: wire.OpPart, Name: string(lane), Data: data, Line: "describe " + d.String()}
	resp, err := r.Pool.Call(r.Ctx, lane, q, limit).AnswerTo(q.Line)
	if err != nil {
		return nil, err
	}
	p := new(checks.Part)
	return p, json.Unmarshal(resp.Data, p)
}

// resolvePart returns the device that a word names. The number of a GPU is that of the last message
// about it: if a GPU disappears, NVML gives its number to another one.
func resolvePart(word string, present, known []checks.Device, events []*event.Event) (checks.Device, error) {
	device, port, _ := strings.Cut(word, ":")
	if !strings.HasPrefix(device, "mlx") && !strings.HasPrefix(device, "bnxt") || len(port) > 2 { // mlx5_2:1 is a port
		device = word
	}
	names := func(list []checks.Device) (found []checks.Device) {
		for _, d := range list {
			if session.Names(d, device) || session.Names(d, word) {
				found = append(found, d)
			}
		}
		return found
	}
	var told []checks.Device // the newest first
	for _, e := range events {
		for _, r := range e.Results {
			if r.Severity == checks.Fail || r.Silenced != nil {
				told = append(told, names([]checks.Device{r.Device})...)
			}
		}
	}
	now := names(present)
	switch {
	case len(told) > 0 && len(now) > 0 && told[0].PCI != "" && now[0].PCI != told[0].PCI:
		return told[0], fmt.Errorf("the last message about %s was about %s, and now it is %s: name the PCI address", word, told[0].PCI, now[0].PCI)
	case len(now) > 0:
		return now[0], nil
	case len(told) > 0:
		return partOf(told[0], present), nil
	}
	if was := names(known); len(was) > 0 {
		return was[0], nil
	}
	var all []string
	for _, d := range present {
		all = append(all, cmp.Or(d.Name, d.PCI))
	}
	if len(all) == 0 {
		return checks.Device{}, errors.New("this node has no GPU, adapter or NVMe disk")
	}
	return checks.Device{}, fmt.Errorf("this node has no such device%s", cmp.Or(spell.DidYouMean(word, all), ": want one of "+strings.Join(all, ", ")))
}

// partOf returns the part that the device of a finding is on: a port is on an adapter.
func partOf(d checks.Device, present []checks.Device) checks.Device {
	if i := slices.IndexFunc(present, func(p checks.Device) bool { return d.PCI != "" && p.PCI == d.PCI }); i >= 0 {
		p := present[i]
		p.Name = cmp.Or(p.Name, d.Name)
		return p
	}
	return d
}

// addAnswer adds the answer of NVML to the data of files.
func addAnswer(p, nvml *checks.Part) {
	if nvml.State == checks.PartAnswers {
		p.State = nvml.State
	} else {
		p.State += "; " + nvml.State
	}
	if nvml.Device.Serial != "" {
		p.SerialFrom = "NVML"
	}
	if nvml.Device.UUID != "" {
		p.Device.UUID = nvml.Device.UUID
	}
	p.Device.Name, p.Device.Serial = cmp.Or(nvml.Device.Name, p.Device.Name), cmp.Or(nvml.Device.Serial, p.Device.Serial)
	p.Model, p.PartNumber, p.VBIOS, p.Inforom = cmp.Or(nvml.Model, p.Model), nvml.PartNumber, cmp.Or(nvml.VBIOS, p.VBIOS), nvml.Inforom
	p.Driver, p.Location.NVLinks = cmp.Or(nvml.Driver, p.Driver), nvml.Location.NVLinks
}

// fromRecords adds serial number and UUID of a device that does not report them.
func fromRecords(p *checks.Part, d checks.Device, known, before []checks.Device, events []*event.Event) {
	if p.SerialFrom != "" || d.Kind != "gpu" {
		return
	}
	same := func(other checks.Device) bool {
		return other.Kind == "gpu" && (p.Device.UUID == "" || other.UUID == "" || other.UUID == p.Device.UUID) &&
			(other.PCI != "" && other.PCI == p.Device.PCI || other.UUID != "" && other.UUID == p.Device.UUID)
	}
	use := func(other checks.Device, from string) bool {
		if other.Serial == "" || !same(other) {
			return false
		}
		p.Device.Serial, p.Device.UUID, p.SerialFrom = other.Serial, cmp.Or(p.Device.UUID, other.UUID), from
		return true
	}
	for _, was := range known {
		if use(was, "the records of earlier runs: the GPU does not report it now") {
			return
		}
	}
	for _, was := range before {
		if use(was, "the records of the board that was here before this boot: the GPU does not report it now, and can be another one") {
			return
		}
	}
	for _, e := range events {
		for _, r := range e.Results {
			if use(r.Device, "the run of "+e.Time.Local().Format(clock)+": the GPU does not report it now") {
				return
			}
		}
	}
}

// addErrors adds the findings about the device, from the history, the newest change first.
func addErrors(p *checks.Part, past []*event.Event) {
	about := func(d checks.Device) bool {
		if d.UUID != "" && p.Device.UUID != "" {
			return d.UUID == p.Device.UUID
		}
		return d.PCI != "" && d.PCI == p.Device.PCI || d.PCI == "" && d.Name != "" && d.Kind == p.Device.Kind && d.Name == p.Device.Name
	}
	for _, e := range slices.Backward(past) {
		seen := map[string]bool{}
		for _, r := range e.Results {
			if r.Severity <= checks.Skip || r.Code == "" || seen[r.Code] || !about(r.Device) {
				continue
			}
			seen[r.Code] = true
			p.AddError(checks.PartError{Source: "health check", Code: r.Code, First: e.Time, Last: e.Time, Count: 1, Message: shortMessage(r)})
		}
	}
	slices.SortStableFunc(p.Errors, func(a, b checks.PartError) int { return a.First.Compare(b.First) })
	if p.Errors == nil {
		p.Errors = []checks.PartError{}
	}
}

// toAdd returns what a vendor asks for and no program on the node can read.
func toAdd(p *checks.Part) (list []string) {
	switch p.Device.Kind {
	case "gpu":
		list = []string{
			"nvidia-bug-report.log.gz: run nvidia-bug-report.sh as root, before the reboot (--safe-mode if it hangs)",
			"field diagnostic: the log of the vendor's fieldiag on the empty node; on a DGX also nvsm dump health",
		}
	case "hca":
		list = []string{
			"sysinfo-snapshot of the node, and mlxlink -d " + cmp.Or(p.Device.PCI, p.Device.Name) + " -m -e -c (module, eye, counters)",
			"serial number and length of the cable, and the switch port at its far end: the fault can be there",
		}
	case "nvme":
		list = []string{
			"nvme smart-log and nvme error-log of /dev/" + p.Device.Name + ", and the vendor's telemetry (nvme telemetry-log)",
			"whether the disk can be returned with its data",
		}
	}
	list = append(list, "BMC: event log (ipmitool sel elist) and the support archive of the server's vendor (Dell TSR, HPE AHS, Supermicro dump)")
	if len(p.Archives) == 0 {
		list = append(list, "evidence: nhc-gpu bundle writes an archive; nothing is stored on this node")
	}
	if p.System.Serial == "" {
		list = append(list, "serial number of the server: its DMI tables do not have it")
	}
	return append(list, "rack and height unit: the node does not know them")
}

// writePart prints a part for a person.
func writePart(w io.Writer, p *checks.Part) {
	row := func(name, value string) {
		if value != "" {
			fmt.Fprintf(w, "  %-12s %s\n", name, value)
		}
	}
	fmt.Fprintf(w, "%s of node %s, %s\n", p.Device, p.Node, p.Time.Local().Format(clock))
	row("state", p.State)
	row("model", p.Model)
	row("serial", strings.TrimSpace(cmp.Or(p.Device.Serial, "unknown")+checks.Before(" (from ", p.SerialFrom, ")")))
	row("part number", p.PartNumber)
	row("board", p.Board)
	row("UUID", p.Device.UUID)
	row("PCI ID", p.PCIID)
	row("VBIOS", p.VBIOS)
	row("InfoROM", p.Inforom)
	row("firmware", p.Firmware)
	row("driver", p.Driver)
	fmt.Fprintln(w, "\nmachine")
	s, l := &p.System, &p.Location
	row("system", strings.TrimSpace(s.Vendor+" "+s.Product)+checks.Before(", serial ", s.Serial, "")+checks.Before(", BIOS ", s.BIOS, ""))
	row("board", s.Board+checks.Before(", serial ", s.BoardSerial, ""))
	row("chassis", strings.TrimPrefix(checks.Before(", serial ", s.ChassisSerial, "")+checks.Before(", asset tag ", s.AssetTag, ""), ", "))
	row("slot", l.Slot)
	if l.NUMA >= 0 {
		row("NUMA node", fmt.Sprint(l.NUMA))
	}
	row("PCIe path", strings.Join(append(slices.Clone(l.Bridges), p.Device.PCI), " > "))
	for _, link := range l.NVLinks {
		row("NVLink", link)
	}
	fmt.Fprintln(w, "\nerrors on record")
	for _, e := range p.Errors {
		times := e.First.Local().Format(clock)
		if e.Count > 1 {
			times += fmt.Sprintf(" to %s, %d times", e.Last.Local().Format(clock), e.Count)
		}
		fmt.Fprintf(w, "  %s  %s: %s (%s)\n", times, e.Code, e.Message, e.Source)
	}
	if len(p.Errors) == 0 {
		fmt.Fprintln(w, "  none is recorded")
	}
	if len(p.Archives) > 0 {
		fmt.Fprintln(w, "\nevidence on this node")
	}
	for _, path := range p.Archives {
		fmt.Fprintln(w, "  "+path)
	}
	fmt.Fprintln(w, "\nto add")
	for _, text := range p.Add {
		fmt.Fprintln(w, "  - "+text)
	}
}
