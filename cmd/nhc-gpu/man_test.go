package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/cpuguy83/go-md2man/v2/md2man"
	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/options"
	"github.com/nhc-gpu/nhc-gpu/tests/need"
)

// The manual pages are made of the help texts, the registry of checks and pages of docs.

const (
	manDir   = "../../man"
	manWrite = "go test ./cmd/nhc-gpu -run TestManPages -u"
)

var (
	sectionHead  = regexp.MustCompile(`(?m)^\.SH .*$`)
	emptySection = regexp.MustCompile(`\.SH .*\n\.SH .*`)
)

// TestManPages compares the manual pages with their sources; with -u it writes them.
func TestManPages(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{"nhc-gpu.8": commandPage(t), "nhc.conf.5": confPage(t), "nhc.toml.5": tomlPage(t)} {
		path := filepath.Join(manDir, name)
		want := string(md2man.Render([]byte(text)))
		if *update {
			if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		got, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, string(got)); diff != "" {
			t.Errorf("%s differs from its sources; %s writes it (-want +got):\n%s", path, manWrite, diff)
		}
		if empty := emptySection.FindString(want); empty != "" {
			t.Errorf("%s: a section without a text: %s", path, empty)
		}
		sections := sectionHead.FindAllString(want, -1)
		slices.Sort(sections)
		if once := slices.Compact(slices.Clone(sections)); len(once) < len(sections) {
			t.Errorf("%s: a section twice: %q", path, sections)
		}
		if strings.Contains(want, "sweep rank") {
			t.Errorf("%s has a hidden command", path)
		}
	}
}

// groff formats the manual pages without a warning, and no line is much wider than a terminal.
func TestManPagesFormat(t *testing.T) {
	t.Parallel()
	need.Program(t, "groff")
	for name, want := range map[string]string{"nhc-gpu.8": "COMMANDS", "nhc.conf.5": "check_fs_mount", "nhc.toml.5": "fail-job"} {
		var warnings strings.Builder
		cmd := exec.Command("groff", "-man", "-ww", "-Tascii", "-P-cbou", "-rLL=100n", filepath.Join(manDir, name))
		cmd.Stderr = &warnings
		out, err := cmd.Output()
		if err != nil || warnings.Len() > 0 || !strings.Contains(string(out), want) {
			t.Errorf("%s: %v, want %q in %d bytes\n%s", name, err, want, len(out), warnings.String())
		}
		for line := range strings.Lines(string(out)) {
			if n := len([]rune(strings.TrimSpace(line))); n > 140 {
				t.Errorf("%s: a line of %d characters: %s", name, n, line)
			}
		}
	}
}

func manHead(name, section, what string) string {
	return fmt.Sprintf("%% %q %q \"\" \"nhc-gpu\" \"nhc-gpu\"\n\n# NAME\n\n%s \\- %s\n\n", strings.ToUpper(name), section, name, what)
}

// commandPage is nhc-gpu(8).
func commandPage(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	root := rootCommand([]string{options.OwnName}, new(int))
	root.AddCommand(commands(new(int))...)
	b.WriteString(manHead("nhc-gpu", "8", "node health check for GPU clusters on Slurm"))
	b.WriteString("# SYNOPSIS\n\n**nhc-gpu** [*options*] [*VARNAME=value* ...]\n\n**nhc-gpu --check** [*options*]\n\n**nhc-gpu** *command* [*arguments*]\n\n# DESCRIPTION\n\n")
	b.WriteString("nhc-gpu checks whether this node can accept, or keep, a job. Without a command it is a drop-in replacement for LBNL Node Health Check: " +
		"it runs the checks of nhc.conf(5), drains the node in Slurm if one fails, and resumes it when all pass. slurmd starts it as HealthCheckProgram, " +
		"Prolog (**--prolog**) or Epilog (**--epilog**).\n\n# OPTIONS\n\n")
	b.WriteString(definitions(options.HelpText[strings.Index(options.HelpText, " -h "):strings.Index(options.HelpText, " All other")]))
	b.WriteString("All other arguments must be settings of the form VARNAME=value.\n\n")
	own := options.OwnHelp[strings.Index(options.OwnHelp, " --check "):strings.Index(options.OwnHelp, " checks [GROUP]")]
	b.WriteString(definitions(own))
	b.WriteString("# COMMANDS\n\n")
	for _, cmd := range root.Commands() {
		b.WriteString(commandSection(cmd))
		for _, sub := range cmd.Commands() {
			if !sub.Hidden {
				b.WriteString(commandSection(sub))
			}
		}
	}
	b.WriteString("# EXIT STATUS\n\n")
	b.WriteString(page(t, "reference/exit-status.md", "###"))
	b.WriteString("# SEE ALSO\n\nnhc.conf(5), nhc.toml(5), slurm.conf(5), sinfo(1), scontrol(1)\n")
	return b.String()
}

func commandSection(cmd *cobra.Command) string {
	var b strings.Builder
	if cmd.Long == "" {
		return fmt.Sprintf("### %s\n\n%s. **nhc-gpu %s --help** shows its options.\n\n", cmd.UseLine(), cmd.Short, cmd.Name())
	}
	fmt.Fprintf(&b, "### %s\n\n%s.\n\n%s", strings.ReplaceAll(cmd.UseLine(), "|", "\\|"), cmd.Short, paragraphs(cmd.Long))
	if cmd.HasAvailableLocalFlags() {
		b.WriteString(definitions(cmd.LocalFlags().FlagUsages()))
	}
	if cmd.HasExample() {
		b.WriteString("Examples:\n\n```\n" + cmd.Example + "\n```\n\n")
	}
	return b.String()
}

// paragraphs makes Markdown of a help text: indented lines keep their form.
func paragraphs(text string) string {
	var b strings.Builder
	indented := false
	for line := range strings.Lines(strings.TrimSpace(text) + "\n") {
		if now := strings.HasPrefix(line, "  "); now != indented {
			b.WriteString("\n```\n")
			if !now {
				b.WriteString("\n")
			}
			indented = now
		}
		b.WriteString(line)
	}
	if indented {
		b.WriteString("```\n")
	}
	return b.String() + "\n"
}

// definitions makes Markdown of a table of options in a help text.
func definitions(table string) string {
	var b strings.Builder
	row := regexp.MustCompile(`^ {1,6}(-.*?)(?:  +|\] |$)(.*)$`)
	text := ""
	flush := func() {
		if text != "" {
			b.WriteString(":   " + text + "\n\n")
		}
		text = ""
	}
	for line := range strings.Lines(strings.NewReplacer("<", "", ">", "", "Options of --check, in any order:", "").Replace(table)) {
		line = strings.TrimRight(line, "\n")
		if m := row.FindStringSubmatch(line); m != nil {
			flush()
			if strings.Contains(m[1], "[") {
				m[1] += "]"
			}
			fmt.Fprintf(&b, "**%s**\n", m[1])
			line = m[2]
		}
		text = strings.TrimSpace(text + " " + strings.TrimSpace(line))
	}
	flush()
	return b.String()
}

// confPage is nhc.conf(5).
func confPage(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	b.WriteString(manHead("nhc.conf", "5", "checks and settings of nhc-gpu(8)"))
	b.WriteString("# DESCRIPTION\n\n" + page(t, "reference/nhc-conf.md", "#"))
	b.WriteString("# SETTINGS\n\n" + page(t, "reference/settings.md", "###"))
	b.WriteString("# CHECKS\n\n**nhc-gpu explain** *NAME* describes a check with its arguments and findings.\n\n")
	for _, group := range checks.Groups {
		fmt.Fprintf(&b, "### %s\n\n", group)
		for _, name := range checks.Names() {
			if info, _ := checks.Lookup(name); info.Group() == group {
				fmt.Fprintf(&b, "**%s** %s\n:   %s\n\n", name, escaped(info.Usage), escaped(info.Summary))
			}
		}
	}
	b.WriteString("# SEE ALSO\n\nnhc-gpu(8), nhc.toml(5)\n")
	return b.String()
}

// tomlPage is nhc.toml(5).
func tomlPage(t *testing.T) string {
	t.Helper()
	return manHead("nhc.toml", "5", "checks as tables, policies and budgets of nhc-gpu(8)") + "# DESCRIPTION\n\n" + page(t, "reference/nhc-toml.md", "#") +
		"# SEE ALSO\n\nnhc-gpu(8), nhc.conf(5)\n"
}

var (
	links    = regexp.MustCompile(`\[([^\]]+)\]\([^)]*\)`)
	comments = regexp.MustCompile(`(?s)<!--.*?-->\n*`)
	rules    = regexp.MustCompile(`^\|[-| :]+\|$`)
)

// page returns a page of docs without its title. Headings begin at a level. Rows of tables become
// definitions, since a terminal is narrow.
func page(t *testing.T, name, level string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../../docs", name))
	if err != nil {
		t.Fatal(err)
	}
	_, body, _ := strings.Cut(comments.ReplaceAllString(string(text), ""), "\n")
	body = links.ReplaceAllString(body, "$1")
	var out []string
	var head []string
	above := ""
	for line := range strings.Lines(body) {
		line = strings.TrimRight(line, "\n")
		if strings.HasPrefix(line, "    ") {
			out = append(out, line)
			continue
		}
		switch {
		case strings.HasPrefix(line, "## "):
			line = level + strings.ToUpper(strings.TrimPrefix(line, "##"))
		case strings.HasPrefix(line, "### "):
			line = level + strings.TrimPrefix(line, "##")
		case rules.MatchString(line):
			continue
		case strings.HasPrefix(line, "|"):
			cells := strings.Split(strings.ReplaceAll(strings.Trim(line, "|"), `\|`, "\x00"), "|")
			for i := range cells {
				cells[i] = strings.ReplaceAll(strings.TrimSpace(cells[i]), "\x00", "|")
			}
			if head == nil {
				head, above = cells, ""
				continue
			}
			if cells[0] == "" {
				cells[0] = above
			}
			above = cells[0]
			line = definition(head, cells)
		default:
			head = nil
		}
		out = append(out, line)
	}
	return strings.TrimSpace(strings.Join(out, "\n")) + "\n\n"
}

// definition makes a definition of a row of a table. A column named "key" belongs to the term.
func definition(head, cells []string) string {
	term := cells[0]
	var texts []string
	for i, cell := range cells {
		switch {
		case i == 0 || cell == "":
		case head[i] == "key":
			term += " " + cell
		case slices.Contains([]string{"", "meaning", "means", "value", "what"}, head[i]):
			texts = append(texts, cell)
		default:
			texts = append(texts, head[i]+": "+cell)
		}
	}
	if texts == nil {
		texts = []string{"(no more to it)"}
	}
	return fmt.Sprintf("%s\n:   %s\n", term, strings.Join(texts, "; "))
}

func escaped(text string) string {
	return strings.NewReplacer("<", `\<`, "*", `\*`, "_", `\_`, "|", `\|`, "[", `\[`, "]", `\]`).Replace(text)
}
