package checktest

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

// The reference of checks: a page for each group with a section for each struct of checks, and
// an index. Registry, comments and scenarios are its source.

const (
	docsDir   = "docs/reference/checks"
	docsWrite = "NHC_GPU_WRITE=docs go test ./checks/... -run 'TestFamily|TestDocs'"
	docsNote  = "\n<!-- " + docsWrite + " writes this page. -->\n"
)

const docsIndex = `# All checks

` + "`nhc-gpu plan`" + ` shows how each line of nhc.conf is interpreted on this node.
` + "`nhc-gpu -e 'CHECK'`" + ` runs one check, logs nothing and drains no node.
` + docsNote + `
A line of nhc.conf is ` + "`TARGET || CHECK`" + `. A check that fails drains the node and logs its
message; [the reason](../slurm.md#the-reason) describes what ` + "`sinfo -R`" + ` shows. A check that cannot
be evaluated (unknown) is logged and drains no node. The messages come from the tests of the checks.

| in a table | means |
|---|---|
| option ` + "`-n` (`count`)" + ` | ` + "`-n`" + ` in nhc.conf, ` + "`count`" + ` in a table of nhc.toml ([nhc.toml](../nhc-toml.md)) |
| option ` + "`MAX`" + ` | an argument without a letter, in the order of the usage line |
| unit ` + "`flag`" + ` | no value: the option alone; ` + "`true`" + ` in nhc.toml |
| unit ` + "`time`" + ` | seconds, or a number with ` + "`s`, `m`, `h` or `d`: `90s`, `15m`, `24h`, `7d`" + ` |
| unit ` + "`size`" + ` | bytes with a unit of base 1024: ` + "`512M`, `8G`" + `. Checks of LBNL NHC: kB without a unit |
| unit ` + "`count`" + ` | a number, or with a unit of base 1000: ` + "`50k`, `2M`" + ` |
| unit ` + "`match`" + ` | a [match string](../nhc-conf.md): a glob, ` + "`/regex/` or `{node[01-16]}`; a leading `!`" + ` negates it |
| default ` + "`none`" + ` | without the option the check does not look at this, or decides as its text says |
| source | who says so: LBNL NHC 1.4.3, a vendor, or a judgement of this project |

A value that is not a number fails the check with ` + "`Invalid ...`" + `, an unknown option with
` + "`Invalid option`" + `. Options with an action (kill, restart, remount, a shell line) act only after every
line before has passed.
`

// A page of a group is its head, with the index, and the sections.
type docsPage struct {
	head     string
	sections []string
}

const sectionMark = "\n## "

var groupTitles = map[string]string{
	"GPU":       "GPUs|the checks of what the driver, NVML, DCGM and the kernel's log report about GPUs",
	"fabric":    "Fabric|the checks of InfiniBand, RoCE and Ethernet ports, routes, name servers and sockets",
	"node":      "Node|the checks of CPUs, memory, PCIe, NVMe disks, topology, the kernel's log, DMI, commands, resource managers",
	"processes": "Processes|the checks of processes and services that must run, must not run, or use too much",
	"files":     "Files and file systems|the checks of files, mounts, and space on file systems",
	"jobs":      "Jobs|the checks of what an ended job has left behind",
	"active":    "Active tests|the tests that load the node to measure it; none runs beside a job",
}

// pageOf returns the file name of a group's page.
func pageOf(group string) string { return strings.ToLower(group) + ".md" }

func pagePath(t *testing.T, group string) string {
	return FromRoot(t, filepath.Join(docsDir, pageOf(group)))
}

// readPage reads the page of a group. A page that does not exist yet is empty.
func readPage(t *testing.T, group string) (p docsPage) {
	t.Helper()
	text, err := os.ReadFile(pagePath(t, group))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	parts := strings.Split(string(text), sectionMark)
	for _, section := range parts[1:] {
		p.sections = append(p.sections, sectionMark+section)
	}
	p.head = parts[0]
	return p
}

// namesOf returns the checks that a section is about.
func namesOf(section string) []string {
	title, _, _ := strings.Cut(strings.TrimPrefix(section, sectionMark), "\n")
	return strings.Split(title, ", ")
}

// isAbout reports whether a section is about one of some checks.
func isAbout(section string, names []string) bool {
	return slices.ContainsFunc(namesOf(section), func(name string) bool { return slices.Contains(names, name) })
}

// groupOf returns the group of the first of some checks that share a section.
func groupOf(names []string) string {
	info, _ := checks.Lookup(names[0])
	return info.Group()
}

// changePage changes the page of a group. The tests of several packages do that at a time.
func changePage(t *testing.T, group string, change func(p *docsPage)) {
	t.Helper()
	path := pagePath(t, group)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	p := readPage(t, group)
	change(&p)
	slices.SortFunc(p.sections, func(a, b string) int { return strings.Compare(namesOf(a)[0], namesOf(b)[0]) })
	if err := os.WriteFile(path, []byte(p.head+strings.Join(p.sections, "")), 0o644); err != nil {
		t.Fatal(err)
	}
}

// sectionsOf returns the sections of the checks of the package under test in one group.
func sectionsOf(t *testing.T, own []string, group string) (sections []string) {
	t.Helper()
	for _, names := range families(own) {
		if groupOf(names) == group {
			section := strings.ReplaceAll(sectionOf(t, names), TestDevice(), "0xfe00") // the device is this machine's
			sections = append(sections, section)
		}
	}
	return sections
}

// checkSections compares the sections of the pages with what the checks and their scenarios
// say.
func checkSections(t *testing.T, own []string) {
	for _, group := range checks.Groups {
		got := slices.DeleteFunc(readPage(t, group).sections, func(s string) bool { return !isAbout(s, own) })
		if diff := cmp.Diff(strings.Join(sectionsOf(t, own, group), ""), strings.Join(got, "")); diff != "" {
			t.Errorf("%s/%s is not what the checks say; %s writes it (-want +got):\n%s", docsDir, pageOf(group), docsWrite, diff)
		}
	}
}

func writeSections(t *testing.T, own []string) {
	t.Helper()
	for _, group := range checks.Groups {
		want := sectionsOf(t, own, group)
		changePage(t, group, func(p *docsPage) {
			p.sections = append(slices.DeleteFunc(p.sections, func(s string) bool { return isAbout(s, own) }), want...)
		})
	}
}

// CheckPage compares the heads of the pages, and which sections they have, with the registry,
// and the index and the page of findings with it. It writes them if it is asked to.
func CheckPage(t *testing.T) {
	t.Helper()
	sameFile(t, docsDir+"/README.md", docsIndex+index(checks.Names()))
	sameFile(t, "docs/reference/findings.md", findingsPage(t))
	writes := os.Getenv(WriteSetting) == "docs"
	for _, group := range checks.Groups {
		var names []string
		var want [][]string
		for _, family := range families(checks.Names()) {
			if groupOf(family) == group {
				names, want = append(names, family...), append(want, family)
			}
		}
		slices.Sort(names)
		title, what, _ := strings.Cut(groupTitles[group], "|")
		head := fmt.Sprintf("# %s\n\n%s\n%s%s", title, wrap("This page lists "+what+". [All checks](README.md) explains the tables.", ""), docsNote, index(names))
		if writes {
			changePage(t, group, func(p *docsPage) {
				p.head = head
				p.sections = slices.DeleteFunc(p.sections, func(s string) bool { return !isAbout(s, names) })
			})
			continue
		}
		page := readPage(t, group)
		if diff := cmp.Diff(head, page.head); diff != "" {
			t.Errorf("%s/%s is not what the checks say; %s writes it (-want +got):\n%s", docsDir, pageOf(group), docsWrite, diff)
		}
		var got [][]string
		for _, s := range page.sections {
			got = append(got, namesOf(s))
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("sections of %s/%s; %s writes them (-want +got):\n%s", docsDir, pageOf(group), docsWrite, diff)
		}
	}
}

// sameFile compares a generated file with its text, or writes it.
func sameFile(t *testing.T, name, want string) {
	t.Helper()
	path := FromRoot(t, name)
	if os.Getenv(WriteSetting) == "docs" {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("%s is not what the program says; %s writes it (-want +got):\n%s", name, docsWrite, diff)
	}
}

// index lists checks by name, with links to their sections.
func index(names []string) string {
	var table strings.Builder
	table.WriteString("\n| check | passes if |\n|---|---|\n")
	links := linksTo()
	for _, name := range names {
		info, _ := checks.Lookup(name)
		fmt.Fprintf(&table, "| [%s](%s) | %s |\n", name, links[name], cell(info.Summary))
	}
	return table.String()
}

// linksTo returns the place of each check's section, as a page beside it links to it.
func linksTo() map[string]string {
	links := map[string]string{}
	for _, names := range families(checks.Names()) {
		anchor := strings.NewReplacer(" ", "-", ",", "").Replace(strings.Join(names, ", "))
		for _, name := range names {
			links[name] = pageOf(groupOf(names)) + "#" + anchor
		}
	}
	return links
}

// families are the groups of some checks that share a struct, usage and advice, in order.
func families(all []string) (list [][]string) {
	at := map[string]int{}
	for _, name := range all {
		info, _ := checks.Lookup(name)
		kind := fmt.Sprintf("%v %v %s %v", typeOf(name).PkgPath(), typeOf(name), info.Usage, slices.Sorted(maps.Keys(info.Advice())))
		if i, ok := at[kind]; ok {
			list[i] = append(list[i], name)
			continue
		}
		at[kind] = len(list)
		list = append(list, []string{name})
	}
	return list
}

// findingsPage lists every code of a finding. The advice on the codes of one check is in its
// section.
func findingsPage(t *testing.T) string {
	t.Helper()
	var page strings.Builder
	page.WriteString(`# Finding codes

A finding has a code that never changes. The code is in the reason in Slurm
(` + "`[gpu.recovery.lost]`" + `) and in ` + "`nhc-gpu --check --json`" + `. ` + "`nhc-gpu explain CODE`" + ` explains it.
` + docsNote + `
"Reason" is how the fault appears in a reason, in at most 14 characters. "Remedy" is the
[remedy](run.md#remedies) of a failing finding that names no other. These codes follow from tables:

- Xids, ` + "`gpu.xid.79` and `gpu.sxid.12028`: [Xid classes](xid-classes.md)" + `
- DCGM's errors, ` + "`dcgm.fr.58`: [DCGM](dcgm.md)" + `
- messages of the kernel about adapters and disks, ` + "`nic.fatal`: [kernel messages](kernel-log.md)" + `

| code | reason | remedy | what to do |
|---|---|---|---|
`)
	table, by, links := ReadCodes(t), map[string][]string{}, linksTo()
	for _, name := range checks.Names() {
		info, _ := checks.Lookup(name)
		for code := range info.Advice() {
			by[code] = append(by[code], fmt.Sprintf("[%s](checks/%s)", name, links[name]))
		}
	}
	for code, do := range checks.SharedAdvice() {
		by[code] = []string{cell(do)}
	}
	for _, code := range slices.Sorted(maps.Keys(by)) {
		words, remedy, do := "the line of nhc.conf", string(table.Remedy[code]), by[code]
		if table.RowOf(code) != "" {
			words = checks.Words(code)
		}
		if len(do) > 3 {
			do = append(do[:2:2], fmt.Sprintf("%d more", len(do)-2))
		}
		fmt.Fprintf(&page, "| `%s` | %s | %s | %s |\n", code, words, remedy, strings.Join(do, ", "))
	}
	return page.String()
}

func code(s string) string {
	if s == "" {
		return ""
	}
	return "`" + strings.ReplaceAll(cell(s), "`", "'") + "`"
}

func cell(s string) string {
	return strings.NewReplacer("|", "\\|", "\n", " ").Replace(s)
}
