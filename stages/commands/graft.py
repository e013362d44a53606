"""graft: the command of the package `skill_grafting` (see stages/lib/patches), run in the project.

python -m stages.commands.graft export MASK --to FOLDER
"""

from stages.lib.patches.__main__ import main

if __name__ == "__main__":
    main()
