// Package peers compares what others make of the same input with what metacni makes of it. README.md
// has the differences.
package peers
