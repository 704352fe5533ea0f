// Package bench measures what multinet costs beside other meta-plugins, in time. README.md has the
// results.
package bench
