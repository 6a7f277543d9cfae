package sweeppage

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks/sweep"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/page"
)

// shades are the classes of a measurement by its ratio to the usual one, the best first. The colours get
// darker (on a dark page lighter) from step to step, so that no one needs to see hues.
var shades = []struct {
	from  float64
	class string
	words string
}{{0.95, "h0", "95 % and more"}, {0.85, "h1", "85 to 95 %"}, {0.70, "h2", "70 to 85 %"}, {0.50, "h3", "50 to 70 %"}, {0, "h4", "less than 50 %"}}

const failedClass = "hx"

// shade returns the class of a cell; "" for one without a test.
func (c *cell) shade() string {
	switch {
	case c.tests == 0:
		return ""
	case c.fault != "":
		return failedClass
	}
	for _, s := range shades {
		if c.ratio >= s.from {
			return s.class
		}
	}
	return failedClass
}

// words describes a cell: "97 %", "failed: no answer".
func (c *cell) words() string {
	if c.fault != "" {
		return "failed: " + cmp.Or(c.text, string(c.fault))
	}
	return fmt.Sprintf("%.0f %%", 100*c.ratio)
}

// legend writes the scale of the colours.
func legend(w *page.Writer) {
	w.Print(`<p class="scale">`)
	for _, s := range shades {
		w.Print(`<span><svg viewBox="0 0 12 12" width="12" height="12"><rect class="%s" width="12" height="12"/></svg> %s</span> `, s.class, s.words)
	}
	w.Print(`<span><svg viewBox="0 0 12 12" width="12" height="12"><rect class="hx" width="12" height="12"/><path class="cross" d="M2 2 10 10M10 2 2 10"/></svg> failed</span> <span><svg viewBox="0 0 12 12" width="12" height="12"><rect class="none" x=".5" y=".5" width="11" height="11"/></svg> no test</span></p>` + "\n")
}

// canvas draws cells, each one unit wide. Cells without a title are joined into one path for each class:
// a page of thousands of nodes stays small.
type canvas struct {
	w     *page.Writer
	paths map[string]*strings.Builder
	gap   float64
	run   struct {
		class string
		x, y  int
		n     int
	}
	crosses strings.Builder
}

// put draws a cell. Cells come row by row, from left to right.
func (c *canvas) put(x, y int, class, title string) {
	if class == "" {
		c.flush()
		return
	}
	if class == failedClass {
		fmt.Fprintf(&c.crosses, "M%d.2 %d.2l.6 .6m0-.6l-.6 .6", x, y)
	}
	if title != "" {
		c.flush()
		c.w.Print(`<rect class="%s" x="%d" y="%d" width="%s" height="%s"><title>%s</title></rect>`, class, x, y, side(c.gap), side(c.gap), title)
		return
	}
	if c.run.class != class || c.run.y != y || c.run.x+c.run.n != x {
		c.flush()
		c.run.class, c.run.x, c.run.y, c.run.n = class, x, y, 0
	}
	c.run.n++
}

func side(gap float64) string { return strings.TrimPrefix(fmt.Sprintf("%.2g", 1-gap), "0") }

func (c *canvas) flush() {
	if c.run.class == "" {
		return
	}
	if c.paths == nil {
		c.paths = map[string]*strings.Builder{}
	}
	b := c.paths[c.run.class]
	if b == nil {
		b = new(strings.Builder)
		c.paths[c.run.class] = b
	}
	fmt.Fprintf(b, "M%d %dh%dv1h-%dz", c.run.x, c.run.y, c.run.n, c.run.n)
	c.run.class = ""
}

// end writes the paths and the crosses of failures.
func (c *canvas) end() {
	c.flush()
	for _, s := range append(slices.Clone(shades), struct {
		from  float64
		class string
		words string
	}{class: failedClass}) {
		if b := c.paths[s.class]; b != nil {
			c.w.Print(`<path class="%s" d="%s"/>`, s.class, page.Raw(b.String()))
		}
	}
	if c.crosses.Len() > 0 {
		c.w.Print(`<path class="cross" d="%s"/>`, page.Raw(c.crosses.String()))
	}
}

// maxCells is the number of rows of a matrix. With more nodes a row is a group of neighbours.
const maxCells = 64

// bins returns the number of groups of nodes, and the nodes of a group.
func bins(nodes int) (groups, each int) {
	each = max((nodes+maxCells-1)/maxCells, 1)
	return (nodes + each - 1) / each, each
}

// matrix draws the pairs of a series: rows send, columns receive. A large one has titles of its slow cells
// only.
func (c *cluster) matrix(w *page.Writer, s *series, only string, labels bool) {
	size, each := bins(len(c.nodes))
	grid := s.grid(size, func(i int) int { return i / each }, only)
	name := func(i int) string {
		if each == 1 {
			return c.nodes[i].Name
		}
		return c.nodes[i*each].Name + " to " + c.nodes[min((i+1)*each, len(c.nodes))-1].Name
	}
	left := 0.0 // room for labels, in cells
	if labels {
		longest := 0
		for i := range size {
			longest = max(longest, len(c.nodes[i*each].Name))
		}
		left = math.Ceil(float64(longest)*fontSize(size)*0.62 + 1)
	}
	total := float64(size) + left
	wide := min(900, total*26)
	w.Print(`<svg class="map" role="img" aria-label="%s" viewBox="%.1f %.1f %.1f %.1f" style="max-width:%.0fpx">`, "pairs of nodes, "+string(s.stage), -left, -left, total, total, wide)
	if labels {
		c.axis(w, size, each)
	}
	draw := &canvas{w: w, gap: 0.08}
	for from := range size {
		for to := range size {
			x := &grid[from][to]
			title := ""
			if class := x.shade(); x.tests > 0 && (labels && size <= 32 || class != "h0" && class != "h1") {
				title = name(from) + " to " + name(to) + ": "
				if x.tests > 1 {
					title += "worst of " + counted(x.tests, "test") + " "
				}
				title += x.words()
			}
			draw.put(to, from, x.shade(), title)
		}
	}
	draw.end()
	w.Print("</svg>\n")
}

// fontSize returns the size of labels in cells.
func fontSize(size int) float64 {
	return max(0.45, min(0.9, float64(size)/40))
}

// axis writes the names of rows and columns: as many as can be read, and all suspects.
func (c *cluster) axis(w *page.Writer, size, each int) {
	font := fontSize(size)
	step := max(1, size/32)
	for i := range size {
		first := c.nodes[i*each]
		class := "label"
		for _, n := range c.nodes[i*each : min((i+1)*each, len(c.nodes))] {
			if len(c.accused[n.Name]) > 0 {
				class = "label bad"
				first = n
				break
			}
		}
		if i%step != 0 && class == "label" {
			continue
		}
		y := float64(i) + 0.5 + font*0.35
		w.Print(`<text class="%s" x="-.4" y="%.2f" font-size="%.2f" text-anchor="end">%s</text>`, class, y, font, first.Name)
		w.Print(`<text class="%s" transform="translate(%.2f -.4)rotate(-90)" font-size="%.2f">%s</text>`, class, y, font, first.Name)
	}
}

// wall draws one cell for each node, in rows of neighbours.
func (c *cluster) wall(w *page.Writer, s *series, only string, labels bool) {
	columns := 20
	for _, more := range []int{25, 40, 50, 100} {
		if len(c.nodes) > columns*columns/2 {
			columns = more
		}
	}
	rows := (len(c.nodes) + columns - 1) / columns
	longest := 0
	for _, n := range c.nodes {
		longest = max(longest, len(n.Name))
	}
	font := max(0.7, min(1.3, float64(columns)/75))
	step := max(1, int(math.Ceil(float64(rows)/25)))
	left := 0.5
	if labels {
		left = math.Ceil(float64(longest)*font*0.62 + 1)
	}
	w.Print(`<svg class="map" role="img" aria-label="nodes" viewBox="%.1f -.5 %.1f %d" style="max-width:%.0fpx">`, -left, left+float64(columns), rows+1, min(1160, (left+float64(columns))*18))
	list := s.byNode(len(c.nodes), only)
	for y := 0; y < rows && labels; y += step {
		w.Print(`<text class="label" x="-.5" y="%.1f" font-size="%.1f" text-anchor="end">%s</text>`, float64(y)+0.9, font, c.nodes[y*columns].Name)
	}
	draw := &canvas{w: w, gap: 0}
	for i := range list {
		x := &list[i]
		title := ""
		if class := x.shade(); class != "" && class != "h0" && class != "h1" || len(c.accused[c.nodes[i].Name]) > 0 && class != "" {
			title = c.nodes[i].Name + ": " + x.words() + " of the usual, " + counted(x.tests, "test")
		}
		draw.put(i%columns, i/columns, x.shade(), title)
	}
	draw.end()
	for i, n := range c.nodes { // a frame shows suspects without colours
		if len(c.accused[n.Name]) > 0 {
			w.Print(`<rect class="frame" x="%d" y="%d" width="1" height="1"/>`, i%columns, i/columns)
		}
	}
	w.Print("</svg>\n")
}

// Sizes of a histogram, pixels.
const (
	histWidth  = 340
	histHeight = 120
	histBins   = 48
	histBase   = 96 // y of the axis
	histTop    = 16
)

// histogram draws the values of the tests that a distribution describes, with its median, its floor and
// the tests of suspects.
func (c *cluster) histogram(w *page.Writer, s *series, d *sweep.Distribution) {
	var values []float64
	bad := map[string]float64{} // worst value of a suspect
	for _, k := range s.order {
		p := s.pairs[k]
		if len(p.values) == 0 || !c.belongs(k, d) {
			continue
		}
		values = append(values, p.value)
		for _, node := range []string{c.nodes[k.from].Name, c.nodes[k.to].Name} {
			if !c.accusedBy(node, d) {
				continue
			}
			if v, ok := bad[node]; !ok || d.Kind.Lower() == (p.value > v) {
				bad[node] = p.value
			}
		}
	}
	if len(values) == 0 {
		return
	}
	low, high := min(slices.Min(values), d.Floor), max(slices.Max(values), d.Floor)
	if high <= low {
		low, high = low*0.9, low*1.1+1e-9
	}
	x := func(v float64) float64 { return 6 + (v-low)/(high-low)*(histWidth-12) }
	count := [histBins]int{}
	for _, v := range values {
		count[min(int((v-low)/(high-low)*histBins), histBins-1)]++
	}
	most := slices.Max(count[:])
	w.Print(`<figure><figcaption><b>%s</b> %s</figcaption><svg class="hist" role="img" viewBox="0 0 %d %d">`, strings.TrimSpace(kindWord(d.Kind, d.Op)+" "+place(d)), fmt.Sprintf("median %s %s, spread %s, %s", number(d.Median), d.Unit, spread(d), counted(len(values), "pair")), histWidth, histHeight)
	wide := float64(histWidth-12) / histBins
	for i, n := range count {
		if n == 0 {
			continue
		}
		h := max(2, math.Sqrt(float64(n)/float64(most))*(histBase-histTop))
		w.Print(`<rect class="bar" x="%.1f" y="%.1f" width="%.1f" height="%.1f"><title>%s</title></rect>`, 6+float64(i)*wide, histBase-h, wide-0.6, h,
			fmt.Sprintf("%s to %s %s: %s", number(low+float64(i)*(high-low)/histBins), number(low+float64(i+1)*(high-low)/histBins), d.Unit, counted(n, "pair")))
	}
	w.Print(`<path class="axis" d="M0 %dH%d"/>`, histBase, histWidth)
	w.Print(`<path class="median" d="M%.1f %dV%d"/><path class="floor" d="M%.1f 4V%d"/>`, x(d.Median), histTop-6, histBase, x(d.Floor), histBase)
	for i, node := range slices.SortedFunc(maps.Keys(bad), func(a, b string) int { return cmp.Or(cmp.Compare(bad[a], bad[b]), page.CompareNames(a, b)) }) {
		if i == 40 {
			break
		}
		at := x(bad[node])
		w.Print(`<path class="mark" d="M%.1f %dl4 8h-8z"><title>%s</title></path>`, at, histBase+1, fmt.Sprintf("%s: %s %s", node, number(bad[node]), d.Unit))
	}
	w.Print(`<text class="tick" x="0" y="%d">%s</text><text class="tick" x="%d" y="%d" text-anchor="end">%s</text>`, histHeight-2, number(low)+" "+d.Unit, histWidth, histHeight-2, number(high)+" "+d.Unit)
	anchor, shift := "start", 4.0
	if x(d.Floor) > histWidth/2 {
		anchor, shift = "end", -4
	}
	w.Print(`<text class="tick" x="%.1f" y="11" text-anchor="%s">floor %s</text></svg></figure>`+"\n", x(d.Floor)+shift, anchor, number(d.Floor)+" "+d.Unit)
}

// accusedBy reports whether a node is suspect by the tests of a distribution.
func (c *cluster) accusedBy(node string, d *sweep.Distribution) bool {
	return slices.ContainsFunc(c.accused[node], func(s *sweep.Suspect) bool {
		return s.Stage == d.Stage && (s.Plane == "" || d.Plane == "" || s.Plane == d.Plane)
	})
}
