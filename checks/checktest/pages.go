package checktest

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/selftest"
	"github.com/nhc-gpu/nhc-gpu/tests/fakenvml"
)

// The scenarios of the self-test are generated from those of the unit tests, as text: the
// differences from a healthy node.

// selftested reports whether the self-test covers a check.
func selftested(name string) bool {
	info, _ := checks.Lookup(name)
	if info.Active || isUnsupported(name) { // active tests need libraries that answer, and are shown by the fake ones; an unsupported check can neither pass nor fail
		return false
	}
	return info.Lane == checks.NVML || slices.ContainsFunc(selftestFamilies, func(f string) bool { return strings.HasPrefix(name, f) })
}

// selftestFamilies are the checks that the self-test covers besides those that query NVML.
var selftestFamilies = []string{
	"check_gpu_", "check_ib_", "check_eth_", "check_net_route", "check_net_dns", "check_pcie", "check_nvme", "check_hw_edac", "check_hw_topology", "check_kernel_log",
}

const (
	selftestDir   = "checks/selftest"
	selftestWrite = "NHC_GPU_WRITE=selftests go test ./checks/... -run 'TestFamily|TestSelftestNodes'"
)

// nodePages returns the files of the healthy nodes, by name.
func nodePages(t *testing.T) map[string]string {
	t.Helper()
	pages := map[string]string{}
	for name, n := range healthyNodes() {
		if n.Files != nil {
			pages["nodes/"+name+".toml"] = nodePage(t, n)
		}
	}
	return pages
}

// selftestPages returns the files of the scenarios of some checks, by name.
func selftestPages(t *testing.T, own []string) map[string]string {
	t.Helper()
	pages := map[string]string{}
	names := map[string][]string{} // names of one check, by its scenarios
	var order []string
	for _, name := range own {
		if !selftested(name) {
			continue
		}
		body := scenarioPage(t, name)
		if names[body] == nil {
			order = append(order, body)
		}
		names[body] = append(names[body], name)
	}
	for _, body := range order {
		file := names[body][0]
		for _, name := range names[body] { // our own name takes precedence over AzureHPC's
			if strings.HasPrefix(name, "check_gpu_") && len(name) < len(file) || !strings.HasPrefix(file, "check_gpu_") {
				file = name
			}
		}
		pages[strings.TrimPrefix(file, "check_")+".toml"] = selftestHead + "checks = " + inline(t, names[body]) + "\n" + body
	}
	return pages
}

const selftestHead = "# Generated from the tests of the check: " + selftestWrite + "\n\n"

// nodePage returns the page of a healthy node. A value that all its GPUs share is written once.
func nodePage(t *testing.T, n *selftest.Node) string {
	t.Helper()
	var b strings.Builder
	b.WriteString(selftestHead + "[nvml]\n")
	fields := flatten(n.NVML)
	written := map[string]bool{}
	for _, p := range slices.Sorted(maps.Keys(fields)) {
		v, key := fields[p], p
		if all := strings.Replace(p, "gpu3.", "gpu*.", 1); all != p && isAlike(fields, p) {
			key, v = all, makeTemplate(v)
		} else if m := gpuPath(p); m != "" && isAlike(fields, "gpu3."+m) {
			continue
		}
		if !written[key] {
			fmt.Fprintf(&b, "%s = %s\n", quoteKey(key), inline(t, v))
		}
		written[key] = true
	}
	writeAll(t, &b, "files", n.Files)
	writeAll(t, &b, "links", n.Links)
	return b.String()
}

// writeAll writes a table. A value that is the same for all GPUs, except for their names, is
// written once.
func writeAll(t *testing.T, b *strings.Builder, name string, table map[string]string) {
	t.Helper()
	if len(table) == 0 {
		return
	}
	once := map[string]string{}
	for key, content := range table {
		all := makeTemplateText(key)
		isAlike := true
		for i := range 8 {
			isAlike = isAlike && makeTemplateText(table[selftest.OfGPU(all, i)]) == makeTemplateText(content)
		}
		if isAlike {
			once[all] = makeTemplateText(content)
		} else {
			once[key] = content
		}
	}
	expanded := map[string]string{}
	for key, content := range once {
		for i := range 8 {
			expanded[selftest.OfGPU(key, i)] = selftest.OfGPU(content, i)
		}
	}
	if diff := cmp.Diff(table, expanded); diff != "" {
		t.Fatalf("the written table differs from the original (-want +got):\n%s", diff)
	}
	fmt.Fprintf(b, "\n[%s]\n", name)
	for _, key := range slices.Sorted(maps.Keys(once)) {
		fmt.Fprintf(b, "%s = %s\n", quoteKey(key), inline(t, once[key]))
	}
}

// gpuPath returns a path without its GPU, "" if it is not about a GPU.
func gpuPath(p string) string {
	head, rest, _ := strings.Cut(p, ".")
	if _, ok := strings.CutPrefix(head, "gpu"); !ok {
		return ""
	}
	return rest
}

// isAlike reports whether a field of gpu3 equals that of the other GPUs, except for their names.
func isAlike(fields map[string]any, p string) bool {
	want := makeTemplate(fields[p])
	for i := range 8 {
		v := fields[strings.Replace(p, "gpu3.", fmt.Sprintf("gpu%d.", i), 1)]
		if text, ok := want.(string); ok {
			if v != any(selftest.OfGPU(text, i)) {
				return false
			}
		} else if !reflect.DeepEqual(v, want) {
			return false
		}
	}
	return true
}

// makeTemplate replaces the number of gpu3 by {i}.
func makeTemplate(v any) any {
	if text, ok := v.(string); ok {
		return makeTemplateText(text)
	}
	return v
}

// makeTemplateText replaces the number of any GPU by {i}.
func makeTemplateText(text string) string {
	for i := range 8 {
		n := strconv.Itoa(i)
		for _, s := range []string{fakenvml.Address(i), fakenvml.UUID(i), fakenvml.Serial(i)} {
			at := strings.LastIndex(strings.TrimSuffix(s, ":00.0"), n)
			text = strings.ReplaceAll(text, s, s[:at]+"{i}"+s[at+1:])
		}
		for _, name := range append(selftest.RailNames(i), "0000:1"+n+":00") {
			at := strings.LastIndex(name, n)
			text = strings.ReplaceAll(text, name, name[:at]+"{i}"+name[at+1:])
		}
		text = strings.ReplaceAll(text, "dev/nvidia"+n, "dev/nvidia{i}")
		text = strings.ReplaceAll(text, "Device Minor: \t "+n+"\n", "Device Minor: \t {i}\n")
	}
	return text
}

// scenarioPage returns the scenarios of one check.
func scenarioPage(t *testing.T, name string) string {
	t.Helper()
	common := commonFiles(scenariosOf(name))
	var b strings.Builder
	if len(common) > 0 {
		writeTable(t, &b, "files", common)
	}
	for _, s := range scenariosOf(name) {
		if s.Live || len(s.Tools) > 0 || len(s.Mtimes) > 0 {
			t.Fatalf("%s: %s: needs this machine, or times of files: the self-test cannot express them", name, s.Name)
		}
		if isLeftOut(s) {
			continue
		}
		writeSelftest(t, &b, name, s, common)
	}
	return b.String()
}

// isLeftOut reports whether the self-test excludes a scenario: an error of the configuration, or a
// node of its own.
func isLeftOut(s Scenario) bool {
	return s.UnitOnly || slices.ContainsFunc(s.Want, func(f checks.Finding) bool { return f.Code == "config.usage" })
}

// commonFiles returns the files that most scenarios without a snapshot of NVML share.
func commonFiles(list []Scenario) map[string]string {
	count, all := map[[2]string]int{}, 0
	for _, s := range list {
		if baseOf(s) == "" {
			all++
			for name, content := range s.Files {
				count[[2]string{name, content}]++
			}
		}
	}
	common := map[string]string{}
	for file, n := range count {
		if n > 2 && n*2 > all {
			common[file[0]] = file[1]
		}
	}
	return common
}

// baseOf returns the healthy node that a scenario was made from.
func baseOf(s Scenario) string {
	switch {
	case s.Node != "":
		return s.Node
	case s.NVML != nil && len(s.NVML.GPUs) == 0 && len(s.Files) == 0:
		return "empty"
	case s.NVML == nil && len(s.Files) < 50:
		return ""
	case s.NVML != nil && len(s.NVML.GPUs) > 0 && strings.Contains(s.NVML.GPUs[0].Name.Value, "V100"):
		return "v100"
	}
	return "h100"
}

func writeSelftest(t *testing.T, b *strings.Builder, name string, s Scenario, common map[string]string) {
	t.Helper()
	base := baseOf(s)
	own := *healthyNode(base)
	node := &own
	if base == "" {
		node.Files = common
	}
	fmt.Fprintf(b, "\n[[scenario]]\nname = %s\n", inline(t, s.Name))
	if base != "" {
		fmt.Fprintf(b, "node = %s\n", inline(t, base))
	}
	if s.Still {
		b.WriteString("still = true\n")
	}
	if len(s.Words) > 0 {
		fmt.Fprintf(b, "words = %s\n", inline(t, s.Words))
	}
	switch {
	case s.Past == "/past", s.Past == "" && (s.NVML != nil || s.NVMLErr != nil || s.Node != ""): // the default of a scenario
	case s.Past == "":
		fmt.Fprintln(b, `past = "none"`)
	default:
		fmt.Fprintf(b, "past = %s\n", inline(t, s.Past))
	}
	if g := s.Slurm; g != nil {
		fmt.Fprintf(b, "slurm = { count = %d, pos = %s, nvidia = %v }\n", g.Count, inline(t, g.Pos), g.NVIDIA)
	}
	if s.NVMLErr != nil {
		fmt.Fprintf(b, "error = %s\n", inline(t, errorTable(s.NVMLErr)))
	}
	files, lacks := diffFiles(s.Files, node.Files)
	links, unlinked := diffFiles(s.Links, node.Links)
	lacks = append(lacks, unlinked...)
	for i := range lacks {
		lacks[i] = widestOf(lacks[i], s.Files, s.Links)
	}
	if slices.Sort(lacks); len(lacks) > 0 {
		fmt.Fprintf(b, "lacks = %s\n", inline(t, slices.Compact(lacks)))
	}
	for _, f := range s.Want {
		w := selftest.AsFinding(f)
		b.WriteString("[[scenario.want]]\n")
		for _, line := range [][2]string{
			{"severity", w.Severity}, {"code", w.Code}, {"device", w.Device}, {"remedy", string(w.Remedy)}, {"message", strings.ReplaceAll(w.Message, name, "{check}")},
		} {
			if line[1] != "" {
				fmt.Fprintf(b, "%s = %s\n", line[0], tomlString(line[1]))
			}
		}
	}
	if j := s.Job; j != nil {
		fmt.Fprintf(b, "[scenario.job]\nid = %s\nuid = %d\nuser = %s\n", inline(t, j.ID), j.UID, inline(t, j.User))
		if len(j.GPUs) > 0 {
			fmt.Fprintf(b, "gpus = %s\n", inline(t, toJSON(j.GPUs)))
		}
		if j.Shared {
			b.WriteString("shared = true\n")
		}
	}
	writeTable(t, b, "scenario.vars", s.Vars)
	writeTable(t, b, "scenario.platform", platformTable(s.Platform))
	if s.NVML != nil && node.NVML != nil {
		writeTable(t, b, "scenario.nvml", diffSnapshots(node.NVML, s.NVML))
	}
	writeTable(t, b, "scenario.files", files)
	writeTable(t, b, "scenario.links", links)
}

// platformTable returns a platform by its TOML keys, without unknown figures.
func platformTable(p *checks.Platform) map[string]any {
	if p == nil {
		return nil
	}
	table := map[string]any{}
	v := reflect.ValueOf(*p)
	for i := range v.NumField() {
		if !v.Field(i).IsZero() {
			table[v.Type().Field(i).Tag.Get("toml")] = toJSON(v.Field(i).Interface())
		}
	}
	return table
}

// widestOf returns the file, or its outermost directory where the scenario has neither files
// nor links.
func widestOf(file string, files, links map[string]string) string {
	for i, r := range file {
		if r != '/' {
			continue
		}
		dir := file[:i+1]
		below := func(f string) bool { return strings.HasPrefix(f, dir) }
		if !slices.ContainsFunc(slices.Collect(maps.Keys(files)), below) && !slices.ContainsFunc(slices.Collect(maps.Keys(links)), below) {
			return dir
		}
	}
	return file
}

// readPages returns the wanted files of checks/selftest, by name.
func readPages(t *testing.T, wanted func(name, text string) bool) map[string]string {
	t.Helper()
	pages, dir := map[string]string{}, FromRoot(t, selftestDir)
	if err := fs.WalkDir(os.DirFS(dir), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(name, ".toml") {
			return err
		}
		data, err := os.ReadFile(filepath.Join(dir, name))
		if wanted(name, string(data)) {
			pages[name] = string(data)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return pages
}

// checksIn returns the names of the checks with scenarios in a file.
func checksIn(page string) []string {
	_, line, _ := strings.Cut(page, "\nchecks = [")
	line, _, _ = strings.Cut(line, "]")
	return strings.FieldsFunc(line, func(r rune) bool { return strings.ContainsRune(`", `, r) })
}

// hasAny returns a function that reports whether a file has scenarios of the given checks.
func hasAny(names []string) func(name, page string) bool {
	return func(_, page string) bool {
		return slices.ContainsFunc(checksIn(page), func(name string) bool { return slices.Contains(names, name) })
	}
}

func isNode(name, _ string) bool { return strings.HasPrefix(name, "nodes/") }

// isLeft reports whether a file has scenarios of checks that no longer exist.
func isLeft(name, page string) bool {
	return len(checksIn(page)) > 0 && !hasAny(checks.Names())(name, page)
}

func comparePages(t *testing.T, want, got map[string]string) {
	t.Helper()
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("%s differs from the unit tests; %s updates it (-want +got):\n%s", selftestDir, selftestWrite, diff)
	}
}

// writePages replaces old files.
func writePages(t *testing.T, want, old map[string]string) {
	t.Helper()
	dir := FromRoot(t, selftestDir)
	for name := range old {
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range want {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func writeSelftests(t *testing.T, own []string) {
	t.Helper()
	writePages(t, selftestPages(t, own), readPages(t, hasAny(own)))
}

// checkSelftestIsWritten compares checks/selftest with the scenarios of the unit tests.
func checkSelftestIsWritten(t *testing.T, own []string) {
	comparePages(t, selftestPages(t, own), readPages(t, hasAny(own)))
}

// CheckNodes compares the healthy nodes and the list of files with the registry. In write mode it
// writes the nodes and removes files of checks that no longer exist.
func CheckNodes(t *testing.T) {
	t.Helper()
	if os.Getenv(WriteSetting) == "selftests" {
		writePages(t, nodePages(t), readPages(t, func(name, page string) bool { return isNode(name, page) || isLeft(name, page) }))
		return
	}
	comparePages(t, nodePages(t), readPages(t, isNode))
	files := map[string]string{} // by check
	for file, page := range readPages(t, func(name, page string) bool { return !isNode(name, page) }) {
		if _, err := selftest.Parse(page); err != nil {
			t.Errorf("%s: %v", file, err)
			continue
		}
		for _, name := range checksIn(page) {
			if other := files[name]; other != "" || !selftested(name) {
				t.Errorf("%s: scenarios of %s must only be in %q", file, name, other)
			}
			files[name] = file
		}
	}
	for _, name := range checks.Names() {
		if selftested(name) && files[name] == "" {
			t.Errorf("%s: no scenarios; %s updates them", name, selftestWrite)
		}
	}
}
