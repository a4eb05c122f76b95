package vocabulary

// What a text says did not come: "OOMKilled": false, 0 OOM errors, no illegal memory access was
// found. People paste counters, test reports and checks that went well, in which the names of
// failures stand as they do in failures.

import "gpumem/doctor/internal/needle"

var (
	// noneBehind is a value of none behind a name, whatever marks a table, a label or a quotation puts
	// between, and a test that passed.
	noneBehind = needle.MustCompile(`(?i)^(?:\.?\w+)*(?:[\s"'` + "`" + `}\])|:=,>]|\b(?:errors?|events?|kills?|count|times|total|is|was|were|check(?:s|ed)?|test)\b)*(?:[\s:=|"'>]+` +
		`(?:(?:0(?:\.0+)?|false|no|none|disabled)(?:[^\w.%]|\.?$|\.\s)|(?:passed|ok|succeeded)\b)|\s*\.{2,}\s*(?:ok|passed|no|none|0)\b|\s*\(?OOM\)? killer\.?\s*$)`)
	// deniedBehind is a clause that goes on to say so.
	deniedBehind = needle.MustCompile(`^[^.;,:]{0,40}\b(?:did not|didn't|does not|doesn't|never|no longer)\b`)
	// deniedBefore is a denial, at most some words before the name in its clause: "could not" denies
	// something else, and "not after" nothing.
	deniedBefore = needle.MustCompile(`(?i)(?:^|[^\w-])(?:no|zero|without(?: an?| any)?|never|no longer an?|(?:has|was|is|were|have|did|does|do) not|(?:hasn|wasn|isn|weren|haven|didn|doesn|don)['’]?t)` +
		`(?: (?:been|any|run|more|the|cuda|gpu|workers?|were|was|running|out|of))*\s*$`)
	// zeroBefore is a count of none before it: of a card, a rank or a line of a log it is a name.
	zeroBefore = needle.MustCompile(`(?i)(?:^|[\](,.|]\s*|:\s+|\b(?:detected|found|caught|saw|had|with|are|were) )0 (?:[\w/()]+ ){0,5}$`)
	// asked is a word of a check or a hint, and no failure.
	asked = needle.MustCompile(`(?i)\b(?:check(?:s|ing)? (?:for|against)|(?:helps?|used?) (?:to )?(?:find|debug|avoid|prevent)|looking for) (?:an? |any )?$`)
)

// Denied reports whether what stands at line[from:to] counts nothing, or did not come, by the words
// around it.
func Denied(line string, from, to int) bool {
	before, behind := line[max(0, from-80):from], line[to:min(len(line), to+80)]
	switch {
	case noneBehind.MatchString(behind), deniedBehind.MatchString(behind):
		return true
	}
	return deniedBefore.MatchString(before) || zeroBefore.MatchString(before) || asked.MatchString(before)
}
