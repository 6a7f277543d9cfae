// Command readings compares what nhc-gpu reads by NVML with nvidia-smi, and prepares the
// files of acceptance.sh:
//
//	readings compare LIBRARY Q.XML NVML.JSON   lines of PASS, FAIL and LOOK; the readings as JSON
//	readings rows A.JSON                       RESULT CODE MESSAGE of each result of nhc-gpu --check --json
//	readings redact Q.XML FILE...              replaces serials, UUIDs and the host's name in files
//
// LIBRARY is a path or "" for the system's.
package main

import (
	"encoding/json"
	"encoding/xml"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
)

func main() {
	err := fmt.Errorf("usage: readings compare LIBRARY Q.XML NVML.JSON | rows A.JSON | redact Q.XML FILE")
	if len(os.Args) > 2 {
		switch args := os.Args[2:]; {
		case os.Args[1] == "compare" && len(args) == 3:
			err = compare(args[0], args[1], args[2])
		case os.Args[1] == "rows":
			err = rows(args[0])
		case os.Args[1] == "redact" && len(args) > 1:
			err = redact(args[0], args[1:])
		}
	}
	if err != nil {
		fmt.Println("FAIL readings:", err)
		os.Exit(1)
	}
}

// element is a part of nvidia-smi's report.
type element struct {
	XMLName  xml.Name
	ID       string    `xml:"id,attr"`
	Text     string    `xml:",chardata"`
	Children []element `xml:",any"`
}

// at returns the element at a path such as pci/pcie_gen/max_link_gen, nil if it is missing.
func (e *element) at(path string) *element {
	for name := range strings.SplitSeq(path, "/") {
		i := slices.IndexFunc(e.Children, func(c element) bool { return c.XMLName.Local == name })
		if i < 0 {
			return nil
		}
		e = &e.Children[i]
	}
	return e
}

// text returns the text at the first path that has one, "" for N/A.
func (e *element) text(paths ...string) string {
	for _, p := range paths {
		if at := e.at(p); at != nil {
			if t := strings.TrimSpace(at.Text); t != "" && !strings.Contains(t, "N/A") && t != "Not Found" {
				return t
			}
		}
	}
	return ""
}

func readReport(path string) (*element, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	root := new(element)
	if err := xml.Unmarshal(data, root); err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return root, nil
}

// slow is the minimum duration of a call of NVML to report it, ms.
const slow = 5

func compare(library, report, output string) error {
	theirs, err := readReport(report)
	if err != nil {
		return err
	}
	h := probe.NewHost("/")
	probe.SetLibraries(h, map[string]string{probe.SettingNVML: library})
	took, calls := map[string]float64{}, map[string]float64{}
	ms := func(since time.Time) float64 { return float64(time.Since(since).Microseconds()) / 1000 }
	last, began := "", time.Now()
	doing := func(call string) {
		if d := ms(began); last != "" && d > slow {
			calls[last] = max(calls[last], d)
		}
		last, began = call, time.Now()
	}
	from := time.Now()
	if _, err := nvml.Ask(h, 0, doing); err != nil {
		return fmt.Errorf("NVML: %w (in %s)", err, last)
	}
	took["open"] = ms(from)
	var n *nvml.Snapshot
	for g := nvml.Group(1); g <= nvml.AllGroups; g <<= 1 {
		from = time.Now()
		n, _ = nvml.Ask(h, g, doing)
		took[fmt.Sprint(uint(g))] = ms(from)
	}
	doing("")
	data, err := json.Marshal(map[string]any{"nvml": n, "took_ms": took, "slow_calls_ms": calls})
	if err != nil {
		return err
	}
	if err := os.WriteFile(output, data, 0o644); err != nil {
		return err
	}
	var parsed map[string]any
	if err := json.Unmarshal(data, &parsed); err == nil {
		failedReadings("", parsed["nvml"])
	}
	var c comparison
	c.text("driver", n.Driver, theirs.text("driver_version"))
	for i := range n.GPUs {
		c.gpu(&n.GPUs[i], theirs)
	}
	fmt.Printf("INFO nvml: %d values like nvidia-smi's, %d unlike, %d to look at\n", c.alike, c.unlike, c.doubtful)
	fmt.Printf("INFO nvml: milliseconds to open it and to read each group: %v; slow calls: %v\n", took, calls)
	return nil
}

// failedReadings names every reading that is an error.
func failedReadings(path string, v any) {
	switch v := v.(type) {
	case map[string]any:
		if text, ok := v["error"]; ok && len(v) == 1 {
			fmt.Printf("FAIL nvml: error at %s: %v\n", path, text)
			return
		}
		for name, below := range v {
			failedReadings(path+"."+name, below)
		}
	case []any:
		for i, below := range v {
			failedReadings(fmt.Sprintf("%s[%d]", path, i), below)
		}
	}
}

// comparison prints one line for each value and counts them.
type comparison struct {
	who                     string
	alike, unlike, doubtful int
}

func (c *comparison) judge(what string, same bool, ours any, known bool, theirs string) {
	verdict := "PASS"
	switch {
	case !known && theirs == "":
		return // neither has the value
	case !known || theirs == "":
		verdict = "LOOK"
		c.doubtful++
	case !same:
		verdict = "FAIL"
		c.unlike++
	default:
		c.alike++
	}
	if !known {
		ours = "not supported"
	}
	if theirs == "" {
		theirs = "N/A"
	}
	fmt.Printf("%s nvml %s%s: %v, nvidia-smi %s\n", verdict, c.who, what, ours, theirs)
}

func (c *comparison) text(what string, ours nvml.Reading[string], theirs string) {
	c.judge(what, strings.EqualFold(ours.Value, theirs), ours.Value, ours.Known, theirs)
}

var leadingNumber = regexp.MustCompile(`^-?[0-9.]+`)

// number compares numbers that may differ by these amounts, because they change.
func number[T ~int | ~uint32 | ~uint64](c *comparison, what string, ours nvml.Reading[T], per, within float64, theirs string) {
	v, err := strconv.ParseFloat(leadingNumber.FindString(theirs), 64)
	d := float64(ours.Value)/per - v
	if err != nil {
		theirs = ""
	}
	c.judge(what, d <= within && d >= -within, float64(ours.Value)/per, ours.Known, theirs)
}

// yes compares with Yes, Enabled, Active, Pending, Supported.
func (c *comparison) yes(what string, ours nvml.Reading[bool], theirs string) {
	is := slices.Contains([]string{"Yes", "Enabled", "Active", "Pending"}, theirs)
	c.judge(what, ours.Value == is, ours.Value, ours.Known, theirs)
}

func (c *comparison) gpu(g *nvml.GPU, report *element) {
	c.who = fmt.Sprintf("gpu%d ", g.Index)
	i := slices.IndexFunc(report.Children, func(e element) bool {
		return e.XMLName.Local == "gpu" && strings.HasSuffix(strings.ToLower(e.ID), g.PCI[min(4, len(g.PCI)):])
	})
	if g.Err != nil || i < 0 {
		c.unlike++
		fmt.Printf("FAIL nvml %sis not in both: PCI %q, %v\n", c.who, g.PCI, g.Err)
		return
	}
	q := &report.Children[i]
	c.text("name", g.Name, q.text("product_name"))
	c.text("UUID", g.UUID, q.text("uuid"))
	c.text("serial", g.Serial, q.text("serial"))
	number(c, "minor number", g.Minor, 1, 0, q.text("minor_number"))
	c.text("VBIOS", g.VBIOS, q.text("vbios_version"))
	c.text("InfoROM", g.Inforom, q.text("inforom_version/img_version"))
	virtual := q.text("gpu_virtualization_mode/virtualization_mode")
	c.judge("vGPU", g.VGPU.Value == (virtual == "VGPU"), g.VGPU.Value, g.VGPU.Known, virtual)

	c.yes("ECC", g.ECC.On, q.text("ecc_mode/current_ecc"))
	c.yes("ECC pending", g.ECC.Pending, q.text("ecc_mode/pending_ecc"))
	c.counts("DRAM", "dram", g.ECC.DRAM, q)
	c.counts("SRAM", "sram", g.ECC.SRAM, q)
	c.yes("unrepairable memory", g.ECC.Unrepairable, q.text("ecc_errors/unrepairable_memory", "unrepairable_memory"))
	if pending := q.text("ecc_errors/channel_repair_pending", "channel_repair_pending"); pending == "Yes" {
		c.yes("repair pending", g.ECC.RepairPending, pending)
	} else {
		c.yes("repair pending", g.ECC.RepairPending, q.text("ecc_errors/tpc_repair_pending", "tpc_repair_pending"))
	}
	c.yes("SRAM threshold", g.ECC.SRAMThreshold, q.text("ecc_errors/aggregate/sram_threshold_exceeded"))

	if r := g.Rows.Remapped; r.Known || q.at("remapped_rows") != nil {
		part := func(v int) nvml.Reading[int] { return nvml.Reading[int]{Value: v, Known: r.Known, Err: r.Err} }
		number(c, "rows remapped, corrected", part(r.Value.Corrected), 1, 0, q.text("remapped_rows/remapped_row_corr"))
		number(c, "rows remapped, uncorrected", part(r.Value.Uncorrected), 1, 0, q.text("remapped_rows/remapped_row_unc"))
		c.yes("remap pending", nvml.Reading[bool]{Value: r.Value.Pending, Known: r.Known}, q.text("remapped_rows/remapped_row_pending"))
		c.yes("remap failed", nvml.Reading[bool]{Value: r.Value.Failed, Known: r.Known}, q.text("remapped_rows/remapped_row_failure"))
	}
	if r := g.Rows.Histogram; r.Known {
		for name, v := range map[string]int{"max": r.Value.Max, "high": r.Value.High, "partial": r.Value.Partial, "low": r.Value.Low, "none": r.Value.None} {
			number(c, "banks, "+name, nvml.Known(v), 1, 0, q.text("remapped_rows/row_remapper_histogram/row_remapper_histogram_"+name))
		}
	}
	number(c, "retired pages, single bit", g.Rows.RetiredSBE, 1, 0, q.text("retired_pages/multiple_single_bit_retirement/retired_count"))
	c.yes("page retirement pending", g.Rows.RetiredPending, q.text("retired_pages/pending_retirement"))
	number(c, "retired pages, double bit", g.Rows.RetiredDBE, 1, 0, q.text("retired_pages/double_bit_retirement/retired_count"))

	c.yes("persistence", g.Modes.Persistence, q.text("persistence_mode"))
	mode := strings.ReplaceAll(strings.ToLower(q.text("compute_mode")), "_", " ")
	c.judge("compute mode", strings.HasPrefix(mode, g.Modes.Compute.Value), g.Modes.Compute.Value, g.Modes.Compute.Known, mode)
	c.yes("MIG", g.Modes.MIG, q.text("mig_mode/current_mig"))
	c.yes("MIG pending", g.Modes.MIGPending, q.text("mig_mode/pending_mig"))

	const warmer = 6 // between the two readings, degrees
	number(c, "temperature", g.Temperature.GPU, 1, warmer, q.text("temperature/gpu_temp"))
	number(c, "memory temperature", g.Temperature.HBM, 1, warmer, q.text("temperature/memory_temp"))
	number(c, "temperature margin", g.Temperature.Margin, 1, warmer, q.text("temperature/gpu_temp_tlimit"))
	number(c, "margin of slowdown", g.Temperature.MarginSlowdown, 1, 0, q.text("temperature/gpu_temp_slow_tlimit_threshold"))
	number(c, "margin of shutdown", g.Temperature.MarginShutdown, 1, 0, q.text("temperature/gpu_temp_max_tlimit_threshold"))
	number(c, "margin of the GPU", g.Temperature.MarginMax, 1, 0, q.text("temperature/gpu_temp_max_gpu_tlimit_threshold"))
	number(c, "slowdown", g.Temperature.Slowdown, 1, 0, q.text("temperature/gpu_temp_slow_threshold"))
	number(c, "shutdown", g.Temperature.Shutdown, 1, 0, q.text("temperature/gpu_temp_max_threshold"))
	number(c, "highest temperature", g.Temperature.MaxGPU, 1, 0, q.text("temperature/gpu_temp_max_gpu_threshold"))
	number(c, "highest memory temperature", g.Temperature.MaxHBM, 1, 0, q.text("temperature/gpu_temp_max_mem_threshold"))

	const watts, drawn = 1000, 80
	power := func(names ...string) string {
		var paths []string
		for _, group := range []string{"gpu_power_readings/", "power_readings/"} {
			for _, name := range names {
				paths = append(paths, group+name)
			}
		}
		return q.text(paths...)
	}
	number(c, "power, W", g.Power.Draw, watts, drawn, power("instant_power_draw", "power_draw", "average_power_draw"))
	number(c, "power limit, W", g.Power.Limit, watts, 0.5, power("current_power_limit", "power_limit", "requested_power_limit"))
	number(c, "default power limit, W", g.Power.Default, watts, 0.5, power("default_power_limit"))
	number(c, "enforced power limit, W", g.Power.Enforced, watts, 0.5, power("enforced_power_limit", "current_power_limit", "power_limit"))

	number(c, "highest SM clock, MHz", g.Clocks.MaxGraphics, 1, 0, q.text("max_clocks/graphics_clock"))
	number(c, "highest memory clock, MHz", g.Clocks.MaxMemory, 1, 0, q.text("max_clocks/mem_clock"))
	number(c, "application SM clock, MHz", g.Clocks.AppGraphics, 1, 0, q.text("applications_clocks/graphics_clock"))
	number(c, "application memory clock, MHz", g.Clocks.AppMemory, 1, 0, q.text("applications_clocks/mem_clock"))

	number(c, "default SM clock, MHz", g.Clocks.DefaultGraphics, 1, 0, q.text("default_applications_clocks/graphics_clock"))
	number(c, "default memory clock, MHz", g.Clocks.DefaultMemory, 1, 0, q.text("default_applications_clocks/mem_clock"))

	reasons := func(name string) string {
		return q.text("clocks_event_reasons/clocks_event_reason_"+name, "clocks_throttle_reasons/clocks_throttle_reason_"+name)
	}
	for name, bit := range map[string]uint64{"hw_slowdown": nvml.ThrottleHardware, "sw_thermal_slowdown": nvml.ThrottleThermal,
		"hw_thermal_slowdown": nvml.ThrottleHardwareThermal, "hw_power_brake_slowdown": nvml.ThrottlePowerBrake} {
		c.yes("clocks: "+name, nvml.Reading[bool]{Value: g.Throttle.Now.Value&bit != 0, Known: g.Throttle.Now.Known}, reasons(name))
	}
	const micro, while = 1000, 2e6 // nanoseconds in a microsecond; growth between the readings
	for name, r := range map[string]nvml.Reading[uint64]{"sw_power_cap": g.Throttle.PowerCap, "sw_thermal_slowdown": g.Throttle.Thermal,
		"hw_thermal_slowdown": g.Throttle.HardwareThermal, "hw_power_braking": g.Throttle.PowerBrake} {
		number(c, "time in "+name+", us", r, micro, while, q.text("clocks_event_reasons_counters/clocks_event_reasons_counters_"+name))
	}

	number(c, "utilisation, %", g.Link.Work.Busy, 1, 100, q.text("utilization/gpu_util"))
	c.text("P-state", nvml.Reading[string]{Value: fmt.Sprintf("P%d", g.Link.Work.State.Value), Known: g.Link.Work.State.Known}, q.text("performance_state"))

	const link = "pci/pci_gpu_link_info/"
	number(c, "PCIe generation of link", g.Link.MaxGen, 1, 0, q.text(link+"pcie_gen/max_link_gen"))
	number(c, "PCIe generation of GPU", g.Link.GPUMaxGen, 1, 0, q.text(link+"pcie_gen/max_device_link_gen"))
	number(c, "PCIe width", g.Link.Width, 1, 0, strings.TrimSuffix(q.text(link+"link_widths/current_link_width"), "x"))
	number(c, "PCIe maximum width", g.Link.MaxWidth, 1, 0, strings.TrimSuffix(q.text(link+"link_widths/max_link_width"), "x"))
	number(c, "PCIe replays", g.Link.Replays, 1, 5, q.text("pci/replay_counter"))

	const mib = 1 << 20
	m := g.Memory
	number(c, "memory, MiB", nvml.Reading[uint64]{Value: m.Value.Total, Known: m.Known}, mib, 1, q.text("fb_memory_usage/total"))
	number(c, "memory in use, MiB", nvml.Reading[uint64]{Value: m.Value.Used, Known: m.Known}, mib, 256, q.text("fb_memory_usage/used"))
	if list := q.at("processes"); list != nil && g.Processes.Known {
		theirs := strconv.Itoa(len(slices.DeleteFunc(slices.Clone(list.Children), func(e element) bool { return e.XMLName.Local != "process_info" })))
		number(c, "processes", nvml.Known(len(g.Processes.Value)), 1, 0, theirs)
	}
	if action := q.text("gpu_recovery_action"); action != "" || g.Recovery.Action.Known {
		c.judge("recovery action", (action == "None") == (g.Recovery.Action.Value == nvml.RecoveryNone), g.Recovery.Action.Value, g.Recovery.Action.Known, action)
	}
	fmt.Printf("INFO nvml %sPCIe generation now %v, nvidia-smi %s (it is lower when idle); fabric %v, nvidia-smi %q %q; NVLinks %v\n", c.who,
		g.Link.Gen.Value, q.text("pci/pci_gpu_link_info/pcie_gen/current_link_gen"), g.Fabric.Value, q.text("fabric/state"), q.text("fabric/status"), g.NVLinks.Value)
}

// counts compares the ECC errors of one kind of memory. On newer GPUs nvidia-smi counts parity and
// SECDED errors of SRAM separately.
func (c *comparison) counts(what, kind string, ours nvml.ECCCounts, q *element) {
	uncorrected := func(when string) string {
		if t := q.text("ecc_errors/"+when+"/"+kind+"_uncorrectable", "ecc_errors/"+when+"/"+kind+"_uncorrectable_ecc"); t != "" {
			return t
		}
		total, told := 0, false
		for _, of := range []string{"_uncorrectable_parity", "_uncorrectable_secded"} {
			if n, err := strconv.Atoi(q.text("ecc_errors/" + when + "/" + kind + of)); err == nil {
				total, told = total+n, true
			}
		}
		if !told {
			return ""
		}
		return strconv.Itoa(total)
	}
	number(c, what+" errors corrected", ours.Corrected, 1, 0, q.text("ecc_errors/volatile/"+kind+"_correctable"))
	number(c, what+" errors uncorrected", ours.Uncorrected, 1, 0, uncorrected("volatile"))
	number(c, what+" errors corrected, ever", ours.CorrectedAggregate, 1, 0, q.text("ecc_errors/aggregate/"+kind+"_correctable"))
	number(c, what+" errors uncorrected, ever", ours.UncorrectedAggregate, 1, 0, uncorrected("aggregate"))
}

func rows(path string) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var report struct {
		Facts   []struct{ Thing, Found, Detail string }
		Results []struct{ Result, Code, Message string }
	}
	if err := json.Unmarshal(data, &report); err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	for _, f := range report.Facts {
		fmt.Printf("fact %s %s: %s\n", f.Found, f.Thing, f.Detail)
	}
	for _, r := range report.Results {
		if r.Code == "" {
			r.Code = "-"
		}
		fmt.Println(r.Result, r.Code, r.Message)
	}
	return nil
}

var uuid = regexp.MustCompile(`(GPU|MIG)-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`)

func redact(report string, files []string) error {
	secrets := map[string]string{}
	if name, err := os.Hostname(); err == nil && len(name) > 2 {
		secrets[name] = "HOST"
	}
	if theirs, err := readReport(report); err == nil {
		var walk func(e *element)
		walk = func(e *element) {
			name, text := e.XMLName.Local, strings.TrimSpace(e.Text)
			if (strings.Contains(name, "serial") || name == "board_id" || name == "clusterUuid") && len(text) > 5 && text != "N/A" {
				secrets[text] = "SERIAL"
			}
			for i := range e.Children {
				walk(&e.Children[i])
			}
		}
		walk(theirs)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		text := uuid.ReplaceAllString(string(data), "${1}-REDACTED")
		for secret, word := range secrets {
			text = strings.ReplaceAll(text, secret, word)
		}
		if text != string(data) {
			if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
				return err
			}
		}
	}
	return nil
}
