package match
import ("testing";"time";"strings";"fmt")
func TestSlow(t *testing.T) {
	as := strings.Repeat("a", 1<<17)
	for range 12 {
		t0 := time.Now()
		a, err := program{expr: "a.{1000}c", lang: ere}.compile()
		if err != nil { t.Fatal(err) }
		ok := a.match(as)
		fmt.Println(ok, time.Since(t0), a.pool.made, a.pool.size, a.remembered, forgets, a.limit)
		forgets = 0
	}
}
