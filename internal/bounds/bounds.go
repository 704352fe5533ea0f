// Package bounds holds the limits on input from outside: from runtimes, pods,
// definitions, files and plugins. Input above a limit is refused where it comes in.
package bounds

import "fmt"

const (
	// Depth is how deeply JSON may be nested. A real configuration has fewer than 20
	// levels, and encoding/json reads 10,000. The difference is room for the levels
	// that we put around a value, in a request or in a record.
	Depth = 1000

	// Annotation is the size in bytes of an annotation that selects networks. An API
	// server takes 256 KiB of annotations for one object.
	Annotation = 256 << 10

	// Selections is how many networks a pod may select, unless the configuration says
	// otherwise. Each one runs plugins, while the container's other operations wait.
	Selections = 64

	// Network is the size in bytes of the configuration of one network, with what a
	// pod adds to it. An API server with its defaults stores 1.5 MiB for one object.
	Network = 1 << 20

	// Object is the size in bytes of the JSON of a Kubernetes object. An API server takes
	// none that is larger.
	Object = 3 << 20

	// Record is the size in bytes of the record of a container's attachments: every
	// command reads it into memory.
	Record = 16 << 20

	// RecordDepth is how deeply a record may be nested: Depth, and the levels that
	// requests and records put around a value.
	RecordDepth = Depth + 24
)

// Above returns an error that says that something has more bytes than limit.
func Above(limit int) error {
	if limit%(1<<20) == 0 {
		return fmt.Errorf("larger than %d MiB", limit>>20)
	}
	return fmt.Errorf("larger than %d KiB", limit>>10)
}

// Deeper reports whether the JSON text is nested more deeply than depth. It reads each
// byte once and does not recurse. The text need not be valid.
func Deeper(text []byte, depth int) bool {
	inString := false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '"':
			inString = !inString
		case inString:
			if c == '\\' {
				i++
			}
		case c == '{' || c == '[':
			if depth--; depth < 0 {
				return true
			}
		case c == '}' || c == ']':
			depth++
		}
	}
	return false
}
