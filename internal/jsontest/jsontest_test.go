package jsontest

import (
	"slices"
	"testing"
)

// Each place has its variants, and the rest of the document stays unchanged.
func TestVariants(t *testing.T) {
	t.Parallel()
	all, err := Variants(`{"a":[1],"b":"x"}`)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`null`, `{"a":null,"b":"x"}`, `{"a":[null],"b":"x"}`, `{"a":[true],"b":"x"}`, `{"a":[1],"b":{}}`, `{"a":[1]}`, `{"b":"x"}`} {
		if !slices.Contains(all, want) {
			t.Errorf("%s is not among them", want)
		}
	}
	if slices.Contains(all, `{"a":[1],"b":"x"}`) || len(all) != 4*12+2 {
		t.Errorf("%d variants: %q", len(all), all)
	}
	if _, err := Variants(`{`); err == nil {
		t.Error("invalid JSON has variants")
	}
}
