package explain

import (
	"slices"
	"strings"
	"sync"

	"github.com/BurntSushi/toml"

	_ "embed"
)

// recipe is a line of nhc.conf for a thing that no built-in check reads.
type recipe struct {
	About, Words, Line, Catches string
}

//go:embed recipes.toml
var recipesText string

// recipes are those of recipes.toml.
var recipes = sync.OnceValue(func() []recipe {
	var file struct{ Recipe []recipe }
	if _, err := toml.Decode(recipesText, &file); err != nil {
		panic("explain: recipes.toml: " + err.Error()) // TestRecipes
	}
	return file.Recipe
})

// isAbout reports whether a recipe is one for a word in lower case: one of its words, or a part of what it is about.
func (r *recipe) isAbout(word string) bool {
	const least = 3 // characters of a part
	words := strings.ToLower(r.About) + " " + r.Words
	return slices.Contains(strings.Fields(words), word) || len(word) >= least && strings.Contains(words, word)
}

// explainRecipes returns the recipes for a word, "" if there are none.
func explainRecipes(word string) string {
	var b strings.Builder
	for _, r := range recipes() {
		if !r.isAbout(strings.ToLower(word)) {
			continue
		}
		if b.Len() == 0 {
			b.WriteString("Lines of nhc.conf for things that no built-in check reads (/usr/share/doc/nhc-gpu/docs/recipes.md):\n")
		}
		b.WriteString("  " + r.About + "\n      line     " + r.Line + "\n" + wrapped("      finds    ", r.Catches))
	}
	return b.String()
}
