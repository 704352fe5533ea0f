package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestReport(t *testing.T) {
	t.Parallel()
	const passes = `{"Action":"start","Package":"p"}
{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"pass","Package":"p","Test":"TestA"}
{"Action":"pass","Package":"p","Test":"TestB"}
{"Action":"pass","Package":"p"}
{"Action":"skip","Package":"without/tests"}
`
	const skips = `{"Action":"skip","Package":"q","Test":"TestB/part"}
{"Action":"pass","Package":"q","Test":"TestB"}
{"Action":"pass","Package":"q"}
`
	for name, tt := range map[string]struct {
		must    []string
		outputs []string
		want    []string
		well    bool
	}{
		"passes": {outputs: []string{passes}, must: []string{"TestA", "TestB"}, want: []string{"2 passed, 0 failed, 0 skipped"}, well: true},
		"skips":  {outputs: []string{passes, skips}, must: []string{"TestA"}, want: []string{"3 passed, 0 failed, 1 skipped"}, well: true},
		"a part of a test that must run is skipped": {
			outputs: []string{skips, passes}, must: []string{"TestB", "TestX"},
			want: []string{"FAILED: TestB must run, but was skipped or does not exist", "FAILED: TestX must run, but was skipped or does not exist", "3 passed, 0 failed, 1 skipped"},
		},
		"a failed test": {
			outputs: []string{passes, `{"Action":"fail","Package":"q","Test":"TestC"}{"Action":"fail","Package":"q"}`},
			want:    []string{"2 passed, 1 failed, 0 skipped"},
		},
		"a package that cannot be built": {
			outputs: []string{passes, `{"ImportPath":"q","Action":"build-fail"}{"Action":"fail","Package":"q"}`},
			want:    []string{"2 passed, 1 failed, 0 skipped"},
		},
		"no JSON":       {outputs: []string{passes, "make: oops"}, want: []string{"2 passed, 1 failed, 0 skipped"}},
		"no test":       {outputs: []string{""}, want: []string{"0 passed, 0 failed, 0 skipped"}},
		"no test there": {want: []string{"0 passed, 0 failed, 0 skipped"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var files []string
			for i, output := range tt.outputs {
				file := filepath.Join(t.TempDir(), string(rune('a'+i)))
				if err := os.WriteFile(file, []byte(output), 0o600); err != nil {
					t.Fatal(err)
				}
				files = append(files, file)
			}
			var out strings.Builder
			well := report(&out, tt.must, files)
			if want := strings.Join(tt.want, "\n") + "\n"; !strings.HasSuffix(out.String(), want) || well != tt.well {
				t.Errorf("%v:\n%swant %v:\n%s", well, out.String(), tt.well, want)
			}
		})
	}
	var out strings.Builder
	if report(&out, nil, []string{filepath.Join(t.TempDir(), "absent")}) {
		t.Error("a file that is not there")
	}
}
